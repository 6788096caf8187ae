"""Fixtures for runs in the test process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2a_celery.store import AsyncStore, Keys
from tests.support.store.leaks import leaks
from tests.support.store.seeds import Seeds

from .attempts import Calls, Task
from .scene import Gate, Scene


@pytest.fixture
async def scene(store: AsyncStore, keys: Keys) -> AsyncIterator[Scene]:
    """Scene without runs. The fixture requires that the test leaves no data behind in the store."""
    scene = Scene(Gate(store), keys, Seeds(store, keys))
    yield scene
    for events in scene.opened:
        await events.abandon()
    assert await leaks(store, keys) == []


@pytest.fixture
def task(scene: Scene) -> Task:
    return Task(scene)


@pytest.fixture
def calls() -> Calls:
    return Calls()
