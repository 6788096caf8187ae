"""Installation record, heartbeats of watchers and workers, and description of the server."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.store import AsyncStore, Keys, Operation, SyncStore
from a2a_celery.store.admin.archiving import read_archive_state
from a2a_celery.store.admin.schema import require_schema
from a2a_celery.store.admin.start_check import (
    ANNOUNCEMENT_TTL_US,
    Server,
    announce_watcher,
    announce_worker,
    announced_workers,
    server_of,
    watchers,
)
from tests.support.waiting import eventually_async


def heartbeat(
    keys: Keys, name: str, *, archives: bool = False, ttl_us: int = ANNOUNCEMENT_TTL_US
) -> Operation[list[str]]:
    return announce_watcher(keys, name, archives=archives, ttl_us=ttl_us)


async def test_a_watcher_restores_the_installation_record_of_an_emptied_store(store: AsyncStore, keys: Keys) -> None:
    await require_schema(store, keys, archive=True)
    record_before = await store.redis.hmget(keys.installation, "schema", "archive")
    await store.redis.flushdb()

    await store.run(watchers(keys))
    assert not await store.redis.exists(keys.installation)
    await store.run(heartbeat(keys, "one", archives=True))

    assert await store.redis.hmget(keys.installation, "schema", "archive") == record_before
    await require_schema(store, keys, archive=True)
    await store.run(read_archive_state(keys, give_up=True))
    await store.run(heartbeat(keys, "one", archives=True))
    assert not (await store.run(read_archive_state(keys))).on


async def test_watchers_are_listed_until_their_heartbeat_expires(store: AsyncStore, keys: Keys) -> None:
    assert await store.run(watchers(keys)) == []
    await store.run(heartbeat(keys, "two"))
    for _ in range(2):
        assert await store.run(heartbeat(keys, "one")) == ["one", "two"]

    async def only_one_is_left() -> bool:
        await store.run(heartbeat(keys, "one", ttl_us=100_000))
        return await store.run(watchers(keys)) == ["one"]

    await eventually_async(only_one_is_left)
    await eventually_async(lambda: _is_expired(store, keys))


async def test_workers_announce_themselves_apart_from_watchers(store: AsyncStore, keys: Keys) -> None:
    await store.run(announce_worker(keys, "worker"))
    await store.run(heartbeat(keys, "watcher"))

    assert await store.run(announced_workers(keys)) == ["worker"]
    assert await store.run(watchers(keys)) == ["watcher"]
    assert await store.redis.pttl(keys.workers) > 0


async def _is_expired(store: AsyncStore, keys: Keys) -> bool:
    return not await store.redis.exists(keys.watchers)


async def test_a_server_is_described(redis_server: EmbeddedRedis) -> None:
    def describe(url: str) -> Server:
        store = SyncStore(url)
        try:
            return server_of(store)
        finally:
            store.close()

    first = await asyncio.to_thread(describe, redis_server.store_url)
    second = await asyncio.to_thread(describe, redis_server.store_url)

    assert first.kind in ("Redis", "Valkey")
    assert first.identity == second.identity
    assert first.primary
    assert abs(first.clock_offset) < 1


async def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(StoreUnavailable, match=r"^ConnectionError.*Connection refused$"):
        await asyncio.to_thread(server_of, SyncStore("redis://127.0.0.1:1/0"))
