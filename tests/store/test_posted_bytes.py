"""Byte budgets of webhook posts. Each owner has a token bucket, which refills."""

from __future__ import annotations

from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.webhooks.deliveries import acquire_bytes

PER_HOUR = 3600 * 1000
ANN = "tenant/ann"


async def test_a_post_takes_its_bytes_and_the_next_waits_until_there_are_some(store: AsyncStore, keys: Keys) -> None:
    async def take(size: int, owner: str = ANN, host: str = "a.example") -> float:
        return await store.run(acquire_bytes(keys, owner, host, size, per_hour=PER_HOUR))

    delays = [await take(PER_HOUR // 2), await take(PER_HOUR)]
    waits = [await take(1), await take(PER_HOUR)]

    assert delays == [0, 0], "the last post may take more than was left"
    assert all(1700 < wait <= 1801 for wait in waits), "who waits takes nothing"
    assert [await take(1, "tenant/bob"), await take(1, host="b.example")] == [0, 0]
    assert 5_300_000 < await store.redis.pttl(keys.posted(ANN, "a.example")) <= 5_400_000


async def test_a_bucket_that_a_wrong_clock_has_written_is_full_again_within_a_day(
    store: AsyncStore, keys: Keys
) -> None:
    await store.redis.set(keys.posted(ANN, "a.example"), 2**52, px=60_000)

    wait = await store.run(acquire_bytes(keys, ANN, "a.example", 1, per_hour=PER_HOUR))

    assert 22.9 * 3600 < wait < 24 * 3600
