"""Deduplication of events, with the same rules in memory and in a real Redis server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client.receiver import ClaimStatus, Deduplicator, MemoryDeduplicator, RedisDeduplicator
from a2a_celery.lifecycle import EventId
from tests.support.waiting import eventually_async

NEW, DUPLICATE, IN_PROGRESS = ClaimStatus.NEW, ClaimStatus.DUPLICATE, ClaimStatus.IN_PROGRESS
HOLD = 60.0


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[redis.asyncio.Redis]:
    """Client of an empty Redis server."""
    async with redis.asyncio.Redis.from_url(redis_server.store_url) as client:
        await client.flushall()
        yield client


@pytest.fixture(params=["memory", "redis", "redis, answers decoded"])
async def deduplicator(redis_server: EmbeddedRedis, request: pytest.FixtureRequest) -> AsyncIterator[Deduplicator]:
    """Empty deduplicator, for each implementation."""
    if request.param == "memory":
        yield MemoryDeduplicator()
        return
    decodes_responses = request.param != "redis"
    async with redis.asyncio.Redis.from_url(redis_server.store_url, decode_responses=decodes_responses) as client:
        await client.flushall()
        yield RedisDeduplicator(client)


async def handle(deduplicator: Deduplicator, line: str, version: int, recorded_us: int = 0) -> ClaimStatus:
    """Claim an event, and settle it as handled if it is new."""
    event_id = EventId(version, recorded_us)
    claim_state = await deduplicator.claim(line, event_id, "me", HOLD)
    if claim_state is NEW:
        await deduplicator.settle(line, event_id, "me", handled=True)
    return claim_state


async def test_a_version_that_is_not_higher_is_a_repeat(deduplicator: Deduplicator) -> None:
    versions = [1, 1, 3, 2, 3, 9, 10, 9]

    assert [await handle(deduplicator, "a", version) for version in versions] == [
        NEW, DUPLICATE, NEW, DUPLICATE, DUPLICATE, NEW, NEW, DUPLICATE
    ]  # fmt: skip


async def test_later_events_with_versions_of_lost_ones_are_new(deduplicator: Deduplicator) -> None:
    """The sender's store has lost events 4 to 6, and has recorded other events with these versions."""
    earlier_events = [(3, 30), (4, 40), (5, 50), (6, 60)]
    since = [(4, 400), (5, 500), (5, 500), (6, 600), (7, 700)]

    standings = [await handle(deduplicator, "a", *event) for event in (*earlier_events, (4, 40), *since, (6, 60))]

    assert standings == [NEW] * 4 + [DUPLICATE] + [NEW, NEW, DUPLICATE, NEW, NEW] + [DUPLICATE]


async def test_versions_without_times_are_compared_alone(deduplicator: Deduplicator) -> None:
    """Posts of an older release contain versions without times, and can arrive before and after the sender's update."""
    versions = [(2, 20), (2, 0), (3, 0), (3, 30), (4, 40), (3, 30), (4, 0), (5, 0)]

    assert [await handle(deduplicator, "a", *event) for event in versions] == [
        NEW, DUPLICATE, NEW, DUPLICATE, NEW, DUPLICATE, DUPLICATE, NEW
    ]  # fmt: skip


async def test_the_time_of_a_repeat_is_compared_exactly(deduplicator: Deduplicator) -> None:
    now_us = 1_795_367_902_192_814

    assert await handle(deduplicator, "a", 5, now_us) is NEW
    assert await handle(deduplicator, "a", 5, now_us) is DUPLICATE
    assert await handle(deduplicator, "a", 5, now_us + 1) is NEW


async def test_lines_know_nothing_of_each_other(deduplicator: Deduplicator) -> None:
    assert await handle(deduplicator, "a", 5) is NEW
    assert await deduplicator.claim("a", EventId(6), "me", HOLD) is NEW

    assert await handle(deduplicator, "b", 1) is NEW


async def test_the_largest_version_is_compared_exactly(deduplicator: Deduplicator) -> None:
    assert await handle(deduplicator, "a", 10**15 - 2) is NEW
    assert await handle(deduplicator, "a", 10**15 - 1) is NEW
    assert await handle(deduplicator, "a", 10**15 - 1) is DUPLICATE


async def test_a_claimed_subscription_is_not_claimed_by_others(deduplicator: Deduplicator) -> None:
    assert await deduplicator.claim("a", EventId(1), "me", HOLD) is NEW

    assert await deduplicator.claim("a", EventId(1), "you", HOLD) is IN_PROGRESS
    assert await deduplicator.claim("a", EventId(2), "you", HOLD) is IN_PROGRESS

    await deduplicator.settle("a", EventId(1), "me", handled=True)
    assert await deduplicator.claim("a", EventId(1), "you", HOLD) is DUPLICATE
    assert await deduplicator.claim("a", EventId(2), "you", HOLD) is NEW


async def test_of_many_at_once_one_handles_it(deduplicator: Deduplicator) -> None:
    standings = await asyncio.gather(*(deduplicator.claim("a", EventId(1), f"holder {n}", HOLD) for n in range(20)))

    assert sorted(standings) == [NEW] + [IN_PROGRESS] * 19


async def test_what_failed_comes_again_as_new(deduplicator: Deduplicator) -> None:
    await handle(deduplicator, "a", 1)
    assert await deduplicator.claim("a", EventId(2), "me", HOLD) is NEW
    await deduplicator.settle("a", EventId(2), "me", handled=False)

    assert await deduplicator.claim("a", EventId(1), "you", HOLD) is DUPLICATE
    assert await deduplicator.claim("a", EventId(2), "you", HOLD) is NEW


async def test_a_process_that_lost_its_claim_does_not_affect_the_next(deduplicator: Deduplicator) -> None:
    assert await deduplicator.claim("a", EventId(2), "me", HOLD) is NEW

    await deduplicator.settle("a", EventId(2), "late", handled=False)
    assert await deduplicator.claim("a", EventId(2), "you", HOLD) is IN_PROGRESS

    await deduplicator.settle("a", EventId(1), "late", handled=True)
    await deduplicator.settle("a", EventId(2), "me", handled=True)
    await deduplicator.settle("a", EventId(1), "late", handled=True)
    assert await deduplicator.claim("a", EventId(2), "you", HOLD) is DUPLICATE


async def test_memory_is_bounded_and_drops_the_least_recently_used_subscription() -> None:
    deduplicator = MemoryDeduplicator(max_subscriptions=2)
    await handle(deduplicator, "a", 1)
    await handle(deduplicator, "b", 1)
    assert await handle(deduplicator, "a", 1) is DUPLICATE
    await handle(deduplicator, "c", 1)

    assert [await deduplicator.claim(line, EventId(1), "me", HOLD) for line in "abc"] == [DUPLICATE, NEW, DUPLICATE]


async def test_memory_drops_a_subscription_whose_event_failed() -> None:
    deduplicator = MemoryDeduplicator(max_subscriptions=1)
    await handle(deduplicator, "b", 1)
    await deduplicator.claim("a", EventId(1), "me", HOLD)
    await deduplicator.settle("a", EventId(1), "me", handled=False)

    assert await handle(deduplicator, "b", 1) is DUPLICATE
    assert await deduplicator.claim("a", EventId(1), "another", HOLD) is NEW


async def test_the_claim_of_a_dead_process_expires(client: redis.asyncio.Redis) -> None:
    dead, alive = RedisDeduplicator(client), RedisDeduplicator(client)
    assert await dead.claim("a", EventId(1), "dead", 0.2) is NEW

    async def is_claimed() -> bool:
        return await alive.claim("a", EventId(1), "alive", HOLD) is NEW

    await eventually_async(is_claimed, what="the line is free")


async def test_receivers_that_share_a_prefix_share_what_they_know(client: redis.asyncio.Redis) -> None:
    assert await handle(RedisDeduplicator(client), "a", 1) is NEW

    assert await handle(RedisDeduplicator(client), "a", 1) is DUPLICATE
    assert await handle(RedisDeduplicator(client, prefix="another-service"), "a", 1) is NEW


async def test_every_key_expires(client: redis.asyncio.Redis) -> None:
    deduplicator = RedisDeduplicator(client, keep=1000)
    await handle(deduplicator, "a", 1)
    await deduplicator.claim("a", EventId(2), "me", HOLD)

    lifetimes = {key.decode(): await client.ttl(key) for key in await client.keys()}

    assert lifetimes.keys() == {"a2a-deduplication:{a}:handled", "a2a-deduplication:{a}:holder"}
    assert 990 < lifetimes["a2a-deduplication:{a}:handled"] <= 1000
    assert HOLD - 10 < lifetimes["a2a-deduplication:{a}:holder"] <= HOLD
