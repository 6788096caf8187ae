"""What was handled is known: in memory and in a real Redis, by the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from a2a_celery.cli.embedded import EmbeddedRedis
from a2a_celery.client.receiver import MemorySeen, RedisSeen, Seen, Standing
from tests.support.waiting import eventually_async

NEW, REPEAT, IN_HAND = Standing.NEW, Standing.REPEAT, Standing.IN_HAND
HOLD = 60.0


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of an empty Redis."""
    async with redis.asyncio.Redis.from_url(redis_server.store_url) as client:
        await client.flushall()
        yield client


@pytest.fixture(params=["memory", "redis", "redis, answers decoded"])
async def seen(redis_server: EmbeddedRedis, request: pytest.FixtureRequest) -> AsyncIterator[Seen]:
    """Each implementation, empty."""
    if request.param == "memory":
        yield MemorySeen()
        return
    decoded = request.param != "redis"
    async with redis.asyncio.Redis.from_url(redis_server.store_url, decode_responses=decoded) as client:
        await client.flushall()
        yield RedisSeen(client)


async def handle(seen: Seen, line: str, version: int) -> Standing:
    """Claims an event, and settles it as handled if it is new."""
    standing = await seen.claim(line, version, "me", HOLD)
    if standing is NEW:
        await seen.settle(line, version, "me", handled=True)
    return standing


async def test_a_version_that_is_not_higher_is_a_repeat(seen: Seen) -> None:
    arriving = [1, 1, 3, 2, 3, 9, 10, 9]

    assert [await handle(seen, "a", version) for version in arriving] == [
        NEW, REPEAT, NEW, REPEAT, REPEAT, NEW, NEW, REPEAT
    ]  # fmt: skip


async def test_lines_know_nothing_of_each_other(seen: Seen) -> None:
    assert await handle(seen, "a", 5) is NEW
    assert await seen.claim("a", 6, "me", HOLD) is NEW

    assert await handle(seen, "b", 1) is NEW


async def test_the_largest_version_is_compared_exactly(seen: Seen) -> None:
    assert await handle(seen, "a", 10**15 - 2) is NEW
    assert await handle(seen, "a", 10**15 - 1) is NEW
    assert await handle(seen, "a", 10**15 - 1) is REPEAT


async def test_a_line_in_hand_is_nobody_elses(seen: Seen) -> None:
    assert await seen.claim("a", 1, "me", HOLD) is NEW

    assert await seen.claim("a", 1, "you", HOLD) is IN_HAND
    assert await seen.claim("a", 2, "you", HOLD) is IN_HAND

    await seen.settle("a", 1, "me", handled=True)
    assert await seen.claim("a", 1, "you", HOLD) is REPEAT
    assert await seen.claim("a", 2, "you", HOLD) is NEW


async def test_of_many_at_once_one_handles_it(seen: Seen) -> None:
    standings = await asyncio.gather(*(seen.claim("a", 1, f"holder {n}", HOLD) for n in range(20)))

    assert sorted(standings) == [NEW] + [IN_HAND] * 19


async def test_what_failed_comes_again_as_new(seen: Seen) -> None:
    await handle(seen, "a", 1)
    assert await seen.claim("a", 2, "me", HOLD) is NEW
    await seen.settle("a", 2, "me", handled=False)

    assert await seen.claim("a", 1, "you", HOLD) is REPEAT
    assert await seen.claim("a", 2, "you", HOLD) is NEW


async def test_who_has_lost_its_hold_takes_nothing_from_the_next(seen: Seen) -> None:
    assert await seen.claim("a", 2, "me", HOLD) is NEW

    await seen.settle("a", 2, "late", handled=False)
    assert await seen.claim("a", 2, "you", HOLD) is IN_HAND

    await seen.settle("a", 1, "late", handled=True)
    await seen.settle("a", 2, "me", handled=True)
    await seen.settle("a", 1, "late", handled=True)
    assert await seen.claim("a", 2, "you", HOLD) is REPEAT


async def test_memory_is_bounded_and_forgets_who_was_not_heard_of_for_longest() -> None:
    seen = MemorySeen(max_lines=2)
    await handle(seen, "a", 1)
    await handle(seen, "b", 1)
    assert await handle(seen, "a", 1) is REPEAT
    await handle(seen, "c", 1)

    assert [await seen.claim(line, 1, "me", HOLD) for line in "abc"] == [REPEAT, NEW, REPEAT]


async def test_memory_keeps_nothing_of_a_line_whose_event_failed() -> None:
    seen = MemorySeen()
    await seen.claim("a", 1, "me", HOLD)
    await seen.settle("a", 1, "me", handled=False)

    assert not seen._handled
    assert not seen._holders


async def test_a_process_that_dies_holds_a_line_for_a_while_only(client: redis.asyncio.Redis) -> None:
    dead, alive = RedisSeen(client), RedisSeen(client)
    assert await dead.claim("a", 1, "dead", 0.2) is NEW

    async def again() -> bool:
        return await alive.claim("a", 1, "alive", HOLD) is NEW

    await eventually_async(again, what="the line is free")


async def test_receivers_that_share_a_prefix_share_what_they_know(client: redis.asyncio.Redis) -> None:
    assert await handle(RedisSeen(client), "a", 1) is NEW

    assert await handle(RedisSeen(client), "a", 1) is REPEAT
    assert await handle(RedisSeen(client, prefix="another-service"), "a", 1) is NEW


async def test_every_key_expires(client: redis.asyncio.Redis) -> None:
    seen = RedisSeen(client, keep=1000)
    await handle(seen, "a", 1)
    await seen.claim("a", 2, "me", HOLD)

    left = {key.decode(): await client.ttl(key) for key in await client.keys()}

    assert left.keys() == {"a2a-seen:{a}:handled", "a2a-seen:{a}:holder"}
    assert 990 < left["a2a-seen:{a}:handled"] <= 1000
    assert HOLD - 10 < left["a2a-seen:{a}:holder"] <= HOLD
