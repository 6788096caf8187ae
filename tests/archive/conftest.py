"""Fixtures for the tests of archives: an archive in each kind of database, and `Seeds` for a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from a2a_celery.archive import Archive, open_archive
from a2a_celery.store import AsyncStore, Keys
from tests.conftest import require_server
from tests.support.processes.databases import Maria, Postgres, running_database
from tests.support.store.seeds import Seeds


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture(scope="package", params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a database, for each kind of database."""
    if request.param == "sqlite":
        yield sqlite(tmp_path_factory.mktemp("archive"))
        return
    kind = Postgres if request.param == "postgresql" else Maria
    require_server(kind)
    with running_database(kind) as server:
        yield server.url


@pytest.fixture
async def archive(url: str) -> AsyncIterator[Archive]:
    """Archive without tasks."""
    archive = open_archive(url)
    while await archive.forget(2**53, 1000):
        pass
    yield archive
    await archive.aclose()


def sqlite(folder: Path) -> str:
    """Return the URL of an SQLite database in `folder`."""
    return f"sqlite+aiosqlite:///{folder / 'archive.db'}"
