"""Fixtures for runs in the test process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.store.leaks import leaks
from tests.support.store.seeds import Seeds

from .attempts import Calls, Task
from .scene import Gate, Scene, TurnByTurn


@pytest.fixture
async def scene(store: AsyncStore, keys: Keys) -> AsyncIterator[Scene]:
    """Scene without runs. The fixture requires that the test leaves no data behind in the store."""
    scene = Scene(Gate(store), keys, Seeds(store, keys))
    yield scene
    for events in scene.opened:
        await events.abandon()
    assert await leaks(store, keys) == []


@pytest.fixture
async def turns(
    request: pytest.FixtureRequest, store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> AsyncIterator[TurnByTurn]:
    """Task of one of the agents of `a2a` in the module of the test."""
    async with TurnByTurn(request.module.a2a, store, keys, redis_server.store_url) as turns:
        yield turns


@pytest.fixture
def task(scene: Scene) -> Task:
    return Task(scene)


@pytest.fixture
def calls() -> Calls:
    return Calls()
