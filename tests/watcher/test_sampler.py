"""Samples of the metrics: one in each interval, a bounded number, and none from before a store was emptied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.samples import DAY, HOUR, SERIES, RecordedSample, Series, read_samples
from a2a_celery.store.admin.schema import require_schema
from a2a_celery.watcher.sampler import Sampler
from tests.support.clocks import ManualClock
from tests.support.processes.moved_clock import MovedClock
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.store.seeds import Seeds
from tests.support.waiting import eventually_async

MINUTE = 60.0


@pytest.fixture
def redis_server(tmp_path: Path, wall_clock: MovedClock) -> Iterator[MortalRedis]:
    """Server with the clock `wall_clock`."""
    with mortal_redis(tmp_path / "store", wall_clock) as server:
        yield server
        server.die()  # a graceful shutdown takes 0.1 s


@pytest.fixture
async def store(redis_server: MortalRedis) -> AsyncIterator[AsyncStore]:
    store = AsyncStore(redis_server.store_url)
    yield store
    await store.aclose()


class Time:
    """Time of a store and its watchers."""

    def __init__(self, wall_clock: MovedClock) -> None:
        self.clock = ManualClock()
        self._wall_clock = wall_clock
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._wall_clock.set_offset(self._seconds)
        self.clock.advance(max(seconds, 0.0))


@pytest.fixture
def time(wall_clock: MovedClock) -> Time:
    return Time(wall_clock)


async def recorded(store: AsyncStore, keys: Keys, series: Series = HOUR) -> list[RecordedSample]:
    return await store.run(read_samples(keys, series))


async def test_the_first_sample_is_recorded_when_a_watcher_starts(store: AsyncStore, keys: Keys, time: Time) -> None:
    seeds = Seeds(store, keys)
    for state in (COMPLETED, COMPLETED, FAILED):
        await seeds.create_task_in(state)
    await seeds.create_task()

    await Sampler(store, keys, time.clock).tick()

    for series in SERIES:
        [sample] = [recorded.sample for recorded in await recorded(store, keys, series)]
        assert sample.ended == (2, 1, 0, 0)
        assert sample.runs == (1, 0, 0, 0, 0)
        assert (sum(sample.queue), sum(sample.run)) == (3, 3)
        assert sample.memory[0] > 500_000


async def test_a_watcher_has_the_role(store: AsyncStore, redis_server: MortalRedis) -> None:
    await require_schema(store, Keys())
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.a2a_store_url = redis_server.store_url
    a2a = A2A(app)
    stop = asyncio.Event()
    watcher = asyncio.create_task(a2a.watcher().run(stop))

    await eventually_async(lambda: recorded(store, Keys()), what="a sample is recorded")

    stop.set()
    await watcher


async def test_several_watchers_record_one_sample_in_each_interval(store: AsyncStore, keys: Keys, time: Time) -> None:
    watchers = [Sampler(store, keys, time.clock) for _ in range(3)]

    for _ in range(5 * 4):
        for watcher in watchers:
            await watcher.tick()
        time.advance(Sampler.every)

    samples = await recorded(store, keys)
    assert len(samples) == 5
    distances = [(after.at_us - before.at_us) / 1e6 for before, after in pairwise(samples)]
    assert distances == [pytest.approx(MINUTE, abs=5)] * 4
    assert len(await recorded(store, keys, DAY)) == 1


async def test_another_watcher_continues_the_series_of_a_stopped_one(store: AsyncStore, keys: Keys, time: Time) -> None:
    first, second = Sampler(store, keys, time.clock), Sampler(store, keys, time.clock)
    await first.tick()
    time.advance(30)
    await second.tick()

    time.advance(MINUTE)
    await second.tick()

    assert len(await recorded(store, keys)) == 2


async def test_the_number_of_samples_is_bounded(store: AsyncStore, keys: Keys, time: Time) -> None:
    for _ in range(HOUR.limit + 5):
        await Sampler(store, keys, time.clock).tick()
        time.advance(MINUTE)

    samples = await recorded(store, keys)
    assert len(samples) == HOUR.limit
    assert (samples[-1].at_us - samples[0].at_us) / 1e6 == pytest.approx(HOUR.seconds, abs=60)
    sizes = [await store.redis.memory_usage(keys.samples(series.name)) for series in SERIES]
    assert sum(sizes) < 30_000, "docs/page.md and store/admin/samples.py name the size"
    assert HOUR.seconds - 120 < await store.redis.ttl(keys.samples("hour")) <= HOUR.seconds


async def test_a_skipped_sample_removes_no_older_sample(store: AsyncStore, keys: Keys, time: Time) -> None:
    for _ in range(HOUR.limit):
        await Sampler(store, keys, time.clock).tick()
        time.advance(MINUTE)
    await Sampler(store, keys, time.clock).tick()

    await Sampler(store, keys, time.clock).tick()

    assert len(await recorded(store, keys)) == HOUR.limit


async def test_samples_from_before_the_clock_was_set_back_are_removed(
    store: AsyncStore, keys: Keys, time: Time
) -> None:
    await Sampler(store, keys, time.clock).tick()
    time.advance(MINUTE)
    await Sampler(store, keys, time.clock).tick()

    time.advance(-10 * MINUTE)
    await Sampler(store, keys, time.clock).tick()

    assert len(await recorded(store, keys)) == 1


async def test_samples_of_a_release_with_other_metrics_are_left_out(store: AsyncStore, keys: Keys, time: Time) -> None:
    await Sampler(store, keys, time.clock).tick()
    await store.redis.rpush(keys.samples("hour"), b"1 [[1],[2]]")

    assert len(await recorded(store, keys)) == 1
