"""Suspended runs, which the dispatcher resumes at their time, and resumed runs, which it publishes once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from a2a_celery.features.families.section import ChildSection
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.publication import mark_published
from a2a_celery.store.tasks.commands import create_task
from a2a_celery.watcher.metrics import WatcherMetrics
from tests.support.store.dispatcher_setup import DUE_NOW_US, Broker, dispatcher
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request, status
from tests.support.store.suspensions import Suspensions, timer, wait_for

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


async def resume_parent(suspensions: Suspensions) -> RunRef:
    """Suspend a run that waits for a child task, end the child, and return the resumed run."""
    seeds, child_id = suspensions.seeds, "child"
    claim = await seeds.claim_run()
    create_child = create_task(
        seeds.keys,
        ANN,
        child_id,
        CONTEXT,
        request(task_id=child_id, context_id=CONTEXT),
        caller=b"{}",
        retention=RETENTION,
        sections=[ChildSection.of(claim.ref.task_id)],
    )
    await seeds.store.run(create_child)
    await suspensions.suspend_run(claim, wait_for(f"child/{child_id}", task_id=child_id))
    await seeds.settle_run(await seeds.claim_run(child_id), status(COMPLETED))
    return RunRef(claim.ref.task_id, 2)


@pytest.mark.parametrize("resumed_by", ["its time", "its child", "a signal"])
async def test_a_resumed_run_does_not_count_as_published_again(
    store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture, resumed_by: str
) -> None:
    """The dispatcher publishes the run for the first time. A signal's sender may have failed before it published it."""
    caplog.set_level(logging.INFO, "a2a_celery.watcher.dispatcher")
    suspensions, metrics = Suspensions(Seeds(store, keys)), CountingMetrics()
    if resumed_by == "its child":
        ref = await resume_parent(suspensions)
    else:
        claim = await suspensions.seeds.claim_run()
        ref = RunRef(claim.ref.task_id, 2)
        await suspensions.suspend_run(claim, wait_for("approval", wait_us=HOUR_US))
        if resumed_by == "a signal":
            await suspensions.send_signal(ref.task_id, "approval")
            await store.redis.zadd(keys.dispatch, {ref.name: 1})
        else:
            await suspensions.make_due(ref)
    broker = Broker()
    watcher = dispatcher(store, keys, broker, metrics=metrics)

    await watcher.tick()
    assert ("agent", ref.task_id, 2) in broker.taken
    assert (metrics.repetitions, caplog.messages) == (0, [])
    await store.redis.zadd(keys.dispatch, {ref.name: 1})
    await watcher.tick()

    assert (metrics.repetitions, caplog.messages) == (1, [f"run {ref.name} published again"])


async def test_a_resumed_run_that_its_signal_published_counts_as_published_again(store: AsyncStore, keys: Keys) -> None:
    suspensions, metrics = Suspensions(Seeds(store, keys)), CountingMetrics()
    watcher = dispatcher(store, keys, Broker(), metrics=metrics)
    claim = await suspensions.seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("approval"))
    await suspensions.send_signal(claim.ref.task_id, "approval")
    await store.run(mark_published(keys, RunRef(claim.ref.task_id, 2), delay_us=DUE_NOW_US))

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
