"""Memory watermark of the store: its threshold, its absence and its cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore
from a2a_celery.store.admin.usage import MEMORY_FRESH_FOR, Memory, MemoryWatermark, read_memory
from tests.support.clocks import ManualClock


@pytest.fixture
def server(any_server: EmbeddedRedis) -> Iterator[Redis]:
    """Client of a Redis server with a `maxmemory` of 64 MiB, for each installed version."""
    with Redis.from_url(any_server.store_url) as server:
        server.config_set("maxmemory", "64mb")
        yield server


@pytest.fixture
async def limited(any_server: EmbeddedRedis, server: Redis) -> AsyncIterator[AsyncStore]:
    """Store client of the server with limited memory."""
    store = AsyncStore(any_server.store_url)
    yield store
    await store.aclose()


async def test_the_used_memory_is_the_value_that_redis_compares_with_maxmemory(
    limited: AsyncStore, server: Redis
) -> None:
    memory = await limited.run(read_memory())

    assert memory is not None
    assert memory == Memory(memory.used, 64 * 2**20, evicts=False)
    assert 0 < memory.used < 8 * 2**20


async def test_the_watermark_is_reached_above_its_share_and_left_below_it(limited: AsyncStore, server: Redis) -> None:
    clock = ManualClock()
    watermark = MemoryWatermark(limited, 0.5, clock)
    assert not await watermark.is_reached()

    server.setrange("filler", 40 * 2**20, "x")
    clock.advance(MEMORY_FRESH_FOR * 1.01)
    assert await watermark.is_reached()

    server.delete("filler")
    clock.advance(MEMORY_FRESH_FOR * 1.01)
    assert not await watermark.is_reached()


@pytest.mark.parametrize(
    ("share", "setting", "value"),
    [
        (None, "maxmemory", "64mb"),
        (0, "maxmemory", "64mb"),
        (0.01, "maxmemory", "0"),
        (0.01, "maxmemory-policy", "volatile-ttl"),
    ],
)
async def test_the_watermark_is_optional(
    limited: AsyncStore, server: Redis, share: float | None, setting: str, value: str
) -> None:
    server.config_set(setting, value)

    assert not await MemoryWatermark(limited, share, ManualClock()).is_reached()


async def test_a_user_without_permission_has_no_watermark(any_server: EmbeddedRedis, server: Redis) -> None:
    server.acl_setuser("narrow", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-info"])
    store = AsyncStore(any_server.store_url.replace("://", "://narrow:word@"))

    assert await store.run(read_memory()) is None
    assert not await MemoryWatermark(store, 0.001, ManualClock()).is_reached()
    await store.aclose()


async def test_the_memory_is_read_once_a_second_at_most(limited: AsyncStore, server: Redis) -> None:
    def calls() -> int:
        return int(server.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])

    clock, calls_before = ManualClock(), calls()
    watermark = MemoryWatermark(limited, 0.5, clock)
    for _ in range(100):
        await watermark.is_reached()
    clock.advance(MEMORY_FRESH_FOR * 1.01)
    await watermark.is_reached()

    assert calls() - calls_before == 2 + 1, "and the one that counts them"
