"""Detection of stuck tasks. It uses the store's clock, and respects a start time that the client chose."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.cli.operator.stuck_tasks import Why, stuck_tasks
from a2a_celery.cli.output import duration
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.runs.commands import claim_run
from a2a_celery.store.runs.release import delegate_to_canvas
from tests.support.store.seeds import Seeds
from tests.support.store.suspensions import Suspensions, timer, wait_for


@pytest.fixture
def operator(redis_server: EmbeddedRedis) -> Iterator[SyncStore]:
    store = SyncStore(redis_server.store_url)
    yield store
    store.close()


@pytest.mark.parametrize(("minutes", "is_stuck"), [(60, False), (-60, True)])
async def test_a_run_that_may_not_begin_yet_is_not_stuck(
    store: AsyncStore, keys: Keys, seeds: Seeds, operator: SyncStore, minutes: int, is_stuck: bool
) -> None:
    task_id = await seeds.create_task()
    start = datetime.now(UTC) + timedelta(minutes=minutes)
    await store.redis.hset(keys.task(task_id).record, "begins_at", int(start.timestamp() * 1e6))

    findings = list(stuck_tasks(operator, keys, 0))

    assert [(finding.task.ref.task_id, finding.why) for finding in findings] == [(task_id, Why.UNCLAIMED)] * is_stuck
    assert all(0 < finding.seconds < 60 for finding in findings)  # counted from the message, not for an hour


async def test_a_run_with_a_current_or_just_lapsed_lease_is_not_stuck(
    store: AsyncStore, keys: Keys, seeds: Seeds, operator: SyncStore
) -> None:
    await seeds.claim_run()
    for name, over_us in (("just", -1_000_000), ("long", -6_000_000)):
        ref = RunRef(await seeds.create_task(task_id=name), 1)
        await store.run(claim_run(keys, ref, token="t", runner="r", lease_us=over_us, working=True))

    findings = list(stuck_tasks(operator, keys, 60))

    assert [(finding.task.ref.task_id, finding.why) for finding in findings] == [("long", Why.LAPSED)]


async def test_a_suspended_run_is_stuck_if_no_watcher_resumes_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, operator: SyncStore
) -> None:
    suspensions = Suspensions(seeds)
    claims = [await seeds.claim_run() for _ in range(3)]
    for claim in claims[:2]:
        await suspensions.suspend_run(claim, timer(wait_us=3_600_000_000))
    await suspensions.suspend_run(claims[2], wait_for("go"))
    late_run = RunRef(claims[0].ref.task_id, 2)
    await suspensions.make_due(late_run)

    reasons = {finding.task.ref: finding.why for finding in stuck_tasks(operator, keys, 0)}

    assert reasons == {late_run: Why.OVERDUE, RunRef(claims[2].ref.task_id, 2): Why.SIGNAL}


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (1, ", published again 1 time"), (2, ", published again 2 times")]
)
async def test_an_unclaimed_run_shows_how_often_it_was_published_again(
    store: AsyncStore, keys: Keys, seeds: Seeds, operator: SyncStore, count: int, text: str
) -> None:
    await store.redis.hset(keys.task(await seeds.create_task()).record, "republish_count", count)

    (finding,) = stuck_tasks(operator, keys, 0)

    assert finding.reason == f"no worker began it{text}"


async def test_a_canvas_that_does_not_end_is_stuck(
    store: AsyncStore, keys: Keys, seeds: Seeds, operator: SyncStore
) -> None:
    claim = await seeds.claim_run()
    await store.run(delegate_to_canvas(keys, claim.ref, token=claim.token, written_count=0, events=[], canvas="{}"))

    assert [(each.task.ref, each.why) for each in stuck_tasks(operator, keys, 0)] == [(claim.ref, Why.CANVAS)]
    assert list(stuck_tasks(operator, keys, 60)) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (100_000, "1 d 3 h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
