"""Token buckets of owners, which limit the rate of requests."""

from __future__ import annotations

from dataclasses import replace

from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import acquire_request
from tests.support.store.seeds import ANN, BOB


async def test_a_bucket_allows_its_burst_and_then_one_at_a_time(store: AsyncStore, keys: Keys) -> None:
    async def take() -> float:
        return await store.run(acquire_request(keys, ANN, per_second=0.1, burst=3))

    burst = [await take() for _ in range(3)]
    waits = [await take() for _ in range(3)]

    assert burst == [0, 0, 0]
    assert all(1 < wait <= 10 for wait in waits), "who is refused takes nothing"
    assert await store.run(acquire_request(keys, BOB, per_second=0.1, burst=3)) == 0
    for scope in (replace(ANN, agent="other"), replace(ANN, tenant="other")):
        assert await store.run(acquire_request(keys, scope, per_second=0.1, burst=3)) > 0
    assert 20_000 < await store.redis.pttl(keys.requests(ANN)) <= 30_000


async def test_a_bucket_is_never_fuller_than_it_can_be(store: AsyncStore, keys: Keys) -> None:
    await store.redis.set(keys.requests(ANN), 2**52, px=60_000)  # written by a clock that was ahead

    wait = await store.run(acquire_request(keys, ANN, per_second=0.1, burst=3))

    assert 9 < wait <= 10
