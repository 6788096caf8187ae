"""Lifespans of an app. They are open on the event loop of a worker process while agents run, and closed when the
process stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.process.run_host import OpenLifespans
from a2a_celery.execution.process.worker_process import worker_stops
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.support.waiting import LIMIT

from .scene import TurnByTurn


def make_app(events: list[str], *, fail: bool = False) -> A2A:
    """Return an app with two lifespans and an agent that asks the client. If `fail` is true, the second lifespan fails
    at the first attempt."""
    a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
    tasks: dict[str, asyncio.Task[None] | None] = {}

    @a2a.add_lifespan
    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        events.append("pool opened")
        tasks["pool"] = asyncio.current_task()
        yield
        assert asyncio.current_task() is tasks["pool"], "a cancel scope must be left by the task that entered it"
        events.append("pool closed")

    @a2a.add_lifespan
    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        if fail and "client failed" not in events:
            events.append("client failed")
            raise ConnectionError("no server")
        events.append("client opened")
        yield
        events.append("client closed")

    @a2a.agent("asks", description="Asks.")
    async def asks(turn: Turn) -> str:
        events.append("run")
        return await turn.ask("Which city?")

    return a2a


async def test_lifespans_are_open_for_all_runs_of_a_process(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    events: list[str] = []
    a2a = make_app(events)
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert await turns.begin("asks") == (INPUT_REQUIRED, "Which city?")
        assert await turns.answer("asks", "Oslo") == ["Oslo"]
        await asyncio.to_thread(worker_stops, SimpleNamespace(app=Celery(set_as_current=False)))
        assert events[-1] == "run", "another app's worker has stopped"
        await asyncio.to_thread(worker_stops, SimpleNamespace(app=a2a.celery))

    assert events == ["pool opened", "client opened", "run", "run", "client closed", "pool closed"]


async def test_a_lifespan_that_fails_fails_the_run_and_is_tried_again(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    events: list[str] = []
    async with TurnByTurn(make_app(events, fail=True), store, keys, redis_server.store_url) as turns:
        assert await turns.begin("asks") == (FAILED, "The agent failed.")
        await store.redis.flushall()
        assert await turns.begin("asks") == (INPUT_REQUIRED, "Which city?")

    assert events == [
        "pool opened",
        "client failed",
        "pool opened",
        "client opened",
        "run",
        "client closed",
        "pool closed",
    ]


async def test_leaving_cancels_a_lifespan_that_is_never_entered() -> None:
    events: list[str] = []
    connecting = asyncio.Event()

    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        try:
            yield
        finally:
            events.append("pool closed")

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        connecting.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            events.append("client cancelled")
        yield

    lifespans = OpenLifespans([pool, client])
    entering = asyncio.create_task(lifespans.enter())
    await connecting.wait()
    async with asyncio.timeout(LIMIT):
        await lifespans.leave()
        await asyncio.wait({entering})

    assert entering.cancelled(), "the run is not failed: another worker executes it"
    assert events == ["client cancelled", "pool closed"]


async def test_leaving_cancels_a_lifespan_before_its_first_step() -> None:
    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        raise AssertionError("entered after the process has stopped")
        yield

    lifespans = OpenLifespans([pool])
    entering = asyncio.create_task(lifespans.enter())
    leaving = asyncio.create_task(lifespans.leave())
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({entering, leaving})

    assert entering.cancelled()
    leaving.result()
