"""Every test of the store ends with the leak checker: whatever it did, no key may break its rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from tests.support.blob_setup import BlobSetup
from tests.support.delivery_cursors import Webhooks
from tests.support.leaks import leaks
from tests.support.restarts import installed_servers
from tests.support.seeds import Seeds


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    """Makes and reads tasks."""
    return Seeds(store, keys)


@pytest.fixture
def webhooks(store: AsyncStore, keys: Keys) -> Webhooks:
    """Writes and leases the lines of webhooks."""
    return Webhooks(store, keys)


@pytest.fixture
async def task_id(seeds: Seeds, webhooks: Webhooks) -> str:
    """A task with a config, which is owed version 2."""
    task_id = await seeds.created()
    await webhooks.saved(task_id)
    await seeds.claimed(task_id)
    return task_id


@pytest.fixture(autouse=True)
async def nothing_leaks(store: AsyncStore, keys: Keys) -> AsyncIterator[None]:
    """The leak checker, after the test."""
    yield
    assert await leaks(store, keys) == []


@pytest.fixture
async def opened(store: AsyncStore, keys: Keys) -> None:
    """The store has been opened by a process of this release, as a fleet's has before there are tasks."""
    await store.redis.hset(keys.installation, "schema", SCHEMA)


@pytest.fixture(params=installed_servers(), ids=str)
def any_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """Each installed version of Redis."""
    server = EmbeddedRedis(server=request.param)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def large(blob_setup: BlobSetup, keys: Keys) -> Seeds:
    """Makes and reads tasks there."""
    return Seeds(blob_setup.store, keys)
