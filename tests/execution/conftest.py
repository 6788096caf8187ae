"""The scene of a run, gone without a leak at the end of its test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2a_celery.store import AsyncStore, Keys
from tests.support.leaks import leaks
from tests.support.seeds import Seeds

from .scene import Gate, Scene


@pytest.fixture
async def scene(store: AsyncStore, keys: Keys) -> AsyncIterator[Scene]:
    """One that is empty."""
    scene = Scene(Gate(store), keys, Seeds(store, keys))
    yield scene
    for events in scene.opened:
        await events.abandon()
    assert await leaks(store, keys) == []


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is asked again at once."""
    monkeypatch.setattr("a2a_celery.execution.events.settlement.RETRY_INTERVAL", 0.01)
