"""Suspended runs, which the dispatcher resumes at their time and publishes once."""

from __future__ import annotations

import asyncio

from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import RunRef
from a2a_celery.watcher.metrics import WatcherMetrics
from a2a_celery.watcher.role_loop import StoreClock
from tests.support.dispatcher_setup import Broker, dispatcher
from tests.support.seeds import Seeds
from tests.support.suspensions import Suspensions, timer

HOUR_US = 3_600_000_000


async def test_runs_whose_time_has_come_are_published_once(store: AsyncStore, keys: Keys) -> None:
    broker, suspensions = Broker(), Suspensions(Seeds(store, keys))
    claims = [await suspensions.seeds.claim_run() for _ in range(250)]
    for claim in claims:
        await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    for claim in claims[1:]:
        await suspensions.make_due(RunRef(claim.ref.task_id, 2))

    await asyncio.gather(*(dispatcher(store, keys, broker).tick() for _ in range(3)))
    while len(broker.taken) < len(claims) - 1:
        await dispatcher(store, keys, broker).tick()

    assert sorted(broker.taken) == sorted(("agent", claim.ref.task_id, 2) for claim in claims[1:])
    assert await suspensions.suspended_runs() == [f"{claims[0].ref.task_id}.2"]


class CountingMetrics(WatcherMetrics):
    """Metrics that count repeated publishes."""

    repetitions = 0

    def count_redispatch(self) -> None:
        """Count a run that was published again."""
        self.repetitions += 1


async def test_a_resumed_run_does_not_count_as_published_again(store: AsyncStore, keys: Keys) -> None:
    suspensions, metrics = Suspensions(Seeds(store, keys)), CountingMetrics()
    claim = await suspensions.seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    await suspensions.make_due(RunRef(claim.ref.task_id, 2))
    watcher = dispatcher(store, keys, Broker())
    watcher._metrics = metrics

    await watcher.tick()
    assert metrics.repetitions == 0
    await store.redis.zadd(keys.dispatch, {f"{claim.ref.task_id}.2": 1})
    await watcher.tick()

    assert metrics.repetitions == 1


async def test_a_resumed_run_waits_for_a_broker_that_is_down(store: AsyncStore, keys: Keys) -> None:
    broker, suspensions = Broker(), Suspensions(Seeds(store, keys))
    claim = await suspensions.seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    await suspensions.make_due(RunRef(claim.ref.task_id, 2))
    broker.down = True

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == []
    assert await suspensions.queued_runs() == [f"{claim.ref.task_id}.2"]


async def test_no_run_is_resumed_by_a_jump_of_the_clock(store: AsyncStore, keys: Keys) -> None:
    """Until a jump is corrected, the dispatcher does not trust times after the latest possible time."""
    broker, suspensions = Broker(), Suspensions(Seeds(store, keys))
    claim = await suspensions.seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    await suspensions.make_due(RunRef(claim.ref.task_id, 2))
    watcher = dispatcher(store, keys, broker)
    watcher._store_clock = StoreClock(store, keys, 15.0)  # it has not read the clock, so any time is too late

    await watcher.tick()

    assert await suspensions.suspended_runs() == [f"{claim.ref.task_id}.2"]
