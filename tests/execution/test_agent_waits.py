"""Time limits for a client's answer and for a cancelled agent, in settings and in options of an agent."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from a2a_celery import InputRequired, Turn
from a2a_celery.agents import Agent, longest_grace
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import ConfigError
from a2a_celery.lifecycle.states import CANCELED
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import request_cancel
from tests.support.agents.basic import card
from tests.support.store.seeds import ANN, CONTEXT
from tests.support.waiting import eventually_async

from .local_agents import local_agents


def agent(**options: Any) -> Agent:
    return Agent("planner", card("planner"), "function", None, **options)


@pytest.mark.parametrize(
    ("setting", "options", "lasts"),
    [
        (None, {}, inf),
        (50.0, {}, 50),
        (50.0, {"input_timeout": 100}, 100),
        (None, {"input_timeout": 100}, 100),
        (50.0, {"input_timeout": inf}, inf),
    ],
)
async def test_the_option_of_an_agent_precedes_the_setting_for_the_length_of_a_pause(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, setting: Any, options: dict[str, Any], lasts: float
) -> None:
    async with local_agents(store, keys, redis_server.store_url, a2a_input_timeout=setting) as agents:

        @agents.a2a.agent("agent", **options)
        async def asks(turn: Turn) -> None:
            raise InputRequired("which?")

        task = await agents.play("agent")

        [(_, until)] = await store.redis.zrange(keys.pauses, 0, -1, withscores=True)
    assert until - task.status.timestamp.ToMicroseconds() == lasts * 1_000_000


async def test_a_pause_lasts_seven_days_by_default(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> None:
    async with local_agents(store, keys, redis_server.store_url) as agents:

        @agents.a2a.agent("agent")
        async def asks(turn: Turn) -> None:
            raise InputRequired("which?")

        task = await agents.play("agent")

        [(_, until)] = await store.redis.zrange(keys.pauses, 0, -1, withscores=True)
    assert until - task.status.timestamp.ToMicroseconds() == 7 * 24 * 3600 * 1_000_000


async def test_an_agent_that_ignores_its_cancel_is_abandoned_after_its_own_grace(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    has_begun, is_done = asyncio.Event(), asyncio.Event()
    test_loop = asyncio.get_running_loop()
    async with local_agents(store, keys, redis_server.store_url, a2a_cancel_grace=3600) as agents:

        @agents.a2a.agent("agent", cancel_grace=0.05)
        async def deaf(turn: Turn) -> None:
            test_loop.call_soon_threadsafe(has_begun.set)
            while not is_done.is_set():
                try:
                    await asyncio.to_thread(
                        lambda: asyncio.run_coroutine_threadsafe(is_done.wait(), test_loop).result()
                    )
                except asyncio.CancelledError:
                    continue

        run = asyncio.create_task(agents.perform("agent", await agents.create()))
        await has_begun.wait()

        async def is_canceled() -> bool:
            # repeated, because the worker may not be subscribed yet
            await store.run(request_cancel(keys, ANN, "t", CONTEXT))
            return (await agents.seeds.task("t")).status.state == CANCELED

        await eventually_async(is_canceled)
        await run
        is_done.set()


@pytest.mark.parametrize("value", [0, -1, float("nan"), "5", True])
@pytest.mark.parametrize("name", ["input_timeout", "cancel_grace"])
def test_each_option_is_a_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} = .*: a number of seconds (above 0|from 1)"):
        agent(**{name: value})


def test_a_client_has_at_least_a_second_to_answer() -> None:
    with pytest.raises(ConfigError, match=r"input_timeout = 0\.9: a number of seconds from 1, math\.inf, or None"):
        agent(input_timeout=0.9)


def test_the_grace_of_an_agent_is_limited() -> None:
    with pytest.raises(ConfigError, match=r"cancel_grace = inf: a number of seconds above 0, or None"):
        agent(cancel_grace=inf)


def test_the_longest_grace_applies_to_all_agents() -> None:
    settings = Settings(store_url="redis://localhost", cancel_grace=5)

    assert longest_grace([], settings) == 5
    assert longest_grace([agent(cancel_grace=2)], settings) == 5
    assert longest_grace([agent(), agent(cancel_grace=60)], settings) == 60
