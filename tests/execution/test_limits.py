"""Limits of a run: the earliest time limit of the agent and of Celery, the time since the agent's last activity, and no
limit for the size of what an agent writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.agents import Agent
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import ConfigError
from a2a_celery.execution.events.queue import MAX_PENDING, RunEventQueue
from a2a_celery.execution.limits import CeleryLimits, Limits, limits_of, out_of_time
from a2a_celery.execution.open_run import OpenRun
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from tests.support.agents.basic import card
from tests.support.clocks import ManualClock
from tests.support.store.seeds import Seeds, chunk

from .scene import AGENT, SETTINGS, Gate, TurnByTurn


def agent(**limits: Any) -> Agent:
    return Agent("limited", card("limited"), "function", print, **limits)


@pytest.mark.parametrize(
    ("own", "celery", "total"),
    [
        ({}, CeleryLimits(), None),
        ({"time_limit": 5}, CeleryLimits(), 5),
        ({"time_limit": 5}, CeleryLimits(soft=3), 3),
        ({"time_limit": 5}, CeleryLimits(soft=30, hard=60), 5),
        ({}, CeleryLimits(soft=30, hard=60), 30),
        ({}, CeleryLimits(hard=60), 54),  # minus the grace period, and one second before the kill
        ({}, CeleryLimits(hard=4), 3),  # three quarters of the limit
        ({}, CeleryLimits(soft=4, hard=4), 3),
        ({}, CeleryLimits(soft=0, hard=0), None),
    ],
)
def test_the_earliest_limit_counts(own: dict[str, float], celery: CeleryLimits, total: float | None) -> None:
    assert limits_of(agent(**own), celery, cancel_grace=5) == Limits(total, None)


def test_an_idle_limit_belongs_to_the_agent() -> None:
    assert limits_of(agent(idle_limit=2), CeleryLimits(30, 60), 5) == Limits(30, 2)


@pytest.mark.parametrize("name", ["time_limit", "idle_limit"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "5", True])
def test_a_limit_is_a_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} = .*seconds above 0"):
        agent(**{name: value})


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan"), "5", True, None])
def test_the_wait_for_a_direct_answer_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"first_event_hold = .*seconds, 0 or more"):
        agent(first_event_hold=value)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(store: AsyncStore) -> Gate:
    return Gate(store)


@pytest.fixture
async def run(gate: Gate, store: AsyncStore, keys: Keys, clock: ManualClock) -> OpenRun:
    """Claimed run on a `Gate`."""
    return OpenRun(gate, keys, await Seeds(store, keys).claim_run(), SETTINGS, AGENT, clock=clock)


@pytest.fixture
async def events(run: OpenRun, gate: Gate) -> Any:
    """Event queue of the run."""
    events = RunEventQueue(run, hold=60)
    yield events
    gate.open.set()
    await events.abandon()


async def test_the_total_time_starts_at_the_arrival(run: OpenRun, events: RunEventQueue, clock: ManualClock) -> None:
    limit = asyncio.create_task(out_of_time(Limits(total=1000), clock.monotonic() - 900, run.idle_clock))
    await clock.until_waiting(100)
    clock.advance(99)
    await events.enqueue_event(chunk("a"))
    assert clock.waits == [1]
    clock.advance(1)
    await limit

    await out_of_time(Limits(total=1000), clock.monotonic() - 2000, run.idle_clock)


async def test_an_event_restarts_the_idle_time(run: OpenRun, events: RunEventQueue, clock: ManualClock) -> None:
    limit = asyncio.create_task(out_of_time(Limits(idle=10), clock.monotonic(), run.idle_clock))
    await clock.until_waiting(10)
    clock.advance(9)

    for number in range(5):
        await events.enqueue_event(chunk(str(number)))
        clock.advance(1)
        await clock.until_waiting(9)
        clock.advance(8)

    clock.advance(1)
    await limit


async def test_an_agent_that_waits_for_the_store_is_not_idle(
    run: OpenRun, events: RunEventQueue, gate: Gate, clock: ManualClock
) -> None:
    gate.open.clear()

    async def say() -> None:
        for number in range(2 * MAX_PENDING):
            await events.enqueue_event(chunk(str(number)))

    saying = asyncio.create_task(say())
    limit = asyncio.create_task(out_of_time(Limits(idle=10), clock.monotonic(), run.idle_clock))

    for _ in range(3):
        await clock.until_waiting(10)
        clock.advance(10)
    await clock.until_waiting(10)
    assert not saying.done()
    gate.open.set()
    await saying
    clock.advance(10)
    await limit


async def test_without_limits_a_run_never_times_out(run: OpenRun, clock: ManualClock) -> None:
    limit = asyncio.create_task(out_of_time(Limits(), clock.monotonic() - 1e9, run.idle_clock))
    await asyncio.sleep(0)
    clock.advance(1e9)
    await asyncio.sleep(0)

    assert not limit.done()
    limit.cancel()


async def test_the_size_of_a_task_does_not_limit_its_agent(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(a2a_task_max_bytes=2_000)
    a2a = A2A(app)

    @a2a.agent("writes")
    async def writes(turn: Turn) -> str:
        await turn.say("y" * 5_000)
        return "x" * 5_000

    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert (await turns.begin("writes"))[0] == COMPLETED

    task = await Seeds(store, keys).task("t")
    assert [len(artifact.parts[0].text) for artifact in task.artifacts] == [5_000]
