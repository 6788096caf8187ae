"""Fixtures for tests of the framework adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, give_empty_sessions, open_task
from tests.support.store.seeds import Seeds


@pytest.fixture
async def task(store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Task]:
    """Task whose attempts each begin with an empty session."""
    give_empty_sessions(monkeypatch)
    async with open_task(store, keys) as task:
        yield task


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)
