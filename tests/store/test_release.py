"""Runs that a worker releases for a Celery retry. A copy of an earlier message does not start the retry."""

from __future__ import annotations

import pytest

from a2a_celery.dispatch import RunOptions
from a2a_celery.lifecycle import Retried, final_event
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, EXECUTION, MAX_ATTEMPTS, own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import (
    Claim,
    Dropped,
    Illegal,
    Over,
    RetryUnrecorded,
    RunLost,
    Unchanged,
    append,
    claim_run,
)
from a2a_celery.store.runs.publication import acquire_due_runs, mark_published, report_prefetched
from a2a_celery.store.runs.recovery import Requeued, begin_next_attempt, lapsed_runs, return_run
from a2a_celery.store.runs.release import Released, delegate_to_canvas, end_by_result, release_run
from a2a_celery.store.tasks.commands import request_cancel
from a2a_celery.store.tasks.replies import CanceledNow
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, status
from tests.support.store.suspensions import Suspensions, wait_for

OPTIONS = b'{"retries":1}'


async def claim_and_record(
    store: AsyncStore, keys: Keys, ref: RunRef, token: str, retries: int = 0
) -> Claim | Dropped | RetryUnrecorded:
    """Claim a run with the message of the `retries`-th retry, and record the retry if the store requires it."""
    event = status(WORKING, attempt=retries + 1)
    lease = {"runner": "here.1.x", "lease_us": LEASE_US, "working": True}
    answer = await store.run(claim_run(keys, ref, token=token, retries=retries, **lease))  # type: ignore[arg-type]
    if isinstance(answer, RetryUnrecorded):
        second_claim = claim_run(keys, ref, token=token, retries=retries, retried=event, **lease)  # type: ignore[arg-type]
        answer = await store.run(second_claim)
    return answer


async def release_for_retry(store: AsyncStore, keys: Keys, ref: RunRef, token: str, retries: int = 1) -> None:
    """Release the run for its `retries`-th retry."""
    events = [status(WORKING, attempt=retries + 1)]
    answer = await store.run(
        release_run(
            keys,
            ref,
            token=token,
            written_count=0,
            events=events,
            options=OPTIONS,
            retries=retries,
            delay_us=60_000_000,
        )
    )
    assert isinstance(answer, Released)


async def test_a_copy_of_the_first_message_does_not_start_the_retry(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    """The broker may redeliver the first message, or a watcher may republish it, before the retry is due."""
    ref = RunRef(await seeds.create_task(), 1)
    assert isinstance(await claim_and_record(store, keys, ref, "first"), Claim)
    await release_for_retry(store, keys, ref, "first")

    assert isinstance(await claim_and_record(store, keys, ref, "copy"), Dropped)
    assert isinstance(await claim_and_record(store, keys, ref, "retry", retries=1), Claim)
    assert isinstance(await claim_and_record(store, keys, ref, "copy"), Dropped)
    await seeds.require_consistent(ref.task_id)


@pytest.mark.parametrize("retries", [1, 3])
async def test_a_run_with_earlier_retries_is_claimed_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, retries: int
) -> None:
    """A returned or lost run continues as a new run, which keeps the number of retries."""
    task_id = await seeds.create_task()
    first, next_run = RunRef(task_id, 1), RunRef(task_id, 2)
    assert isinstance(await claim_and_record(store, keys, first, "first"), Claim)
    await release_for_retry(store, keys, first, "first", retries)
    await store.run(return_run(keys, first, runner=None, loss=status(FAILED, "lost")))
    assert isinstance(await claim_and_record(store, keys, next_run, "mine", retries), Claim)

    assert isinstance(await claim_and_record(store, keys, next_run, "copy", retries), Dropped)
    result = await store.run(
        append(keys, next_run, token="mine", written_count=0, events=[chunk("still mine", append=False)])
    )
    assert not isinstance(result, RunLost)
    await seeds.require_consistent(task_id)


async def test_a_retry_that_starts_before_the_end_of_its_run_takes_it_over(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    assert isinstance(await claim_and_record(store, keys, ref, "first"), Claim)

    assert isinstance(await claim_and_record(store, keys, ref, "retry", retries=1), Claim)

    result = await store.run(append(keys, ref, token="first", written_count=0, events=[status(COMPLETED)]))
    assert isinstance(result, RunLost)
    assert isinstance(await claim_and_record(store, keys, ref, "copy", retries=1), Dropped)
    await seeds.require_consistent(ref.task_id)


async def test_returning_a_retry_twice_has_the_same_reply(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    assert isinstance(await claim_and_record(store, keys, ref, "first"), Claim)
    await release_for_retry(store, keys, ref, "first")
    operation = return_run(keys, ref, runner=None, loss=status(FAILED, "lost"))

    first, second = await store.run(operation), await store.run(operation)

    assert first == second == Requeued(ANN.agent, 2, OPTIONS)


async def test_a_prefetched_retry_is_not_due(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=1000))
    await store.run(report_prefetched(keys, [ref], silent_us=LEASE_US, delay_us=LEASE_US))
    assert isinstance(await claim_and_record(store, keys, ref, "first"), Claim)
    await release_for_retry(store, keys, ref, "first")

    await store.run(report_prefetched(keys, [ref], silent_us=LEASE_US, delay_us=LEASE_US))

    assert await store.run(acquire_due_runs(keys, limit=10, delay_us=0)) == []


async def test_each_reply_names_the_cancelled_canvas(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    """The caller must revoke the canvas even if the first reply was lost."""
    claim = await seeds.claim_run()
    await store.run(
        delegate_to_canvas(
            keys, claim.ref, token=claim.token, written_count=0, events=[], canvas='{"result":["x",null]}'
        )
    )
    operation = request_cancel(keys, ANN, claim.ref.task_id, CONTEXT)

    first, second = await store.run(operation), await store.run(operation)

    assert isinstance(first, CanceledNow)
    assert first.canvas == b'{"result":["x",null]}'
    assert second == first


async def test_the_time_of_the_retry_is_removed_with_its_claim(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    assert isinstance(await claim_and_record(store, keys, ref, "first"), Claim)
    waiting = final_event(Retried(2, 4, "2030-01-01T08:00:00+00:00", "ConnectionError"), ref.task_id, CONTEXT)
    assert waiting is not None
    await store.run(
        release_run(
            keys, ref, token="first", written_count=0, events=[waiting], options=OPTIONS, retries=1, delay_us=60_000_000
        )
    )
    assert (await seeds.task(ref.task_id)).metadata == waiting.metadata

    assert isinstance(await claim_and_record(store, keys, ref, "retry", retries=1), Claim)

    assert dict((await seeds.task(ref.task_id)).metadata) == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 4})
    assert await seeds.states(ref.task_id) == [SUBMITTED, WORKING, WORKING, WORKING]
    await seeds.require_consistent(ref.task_id)


async def test_no_metadata_about_a_run_is_left_in_an_ended_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    progress = status(WORKING, **own_metadata({CELERY_STATE: "PROGRESS", EXECUTION: {"state": "MODEL_CALL"}}))
    await seeds.append_events(claim, progress)
    assert (await seeds.task(claim.task.id)).metadata == progress.metadata

    await seeds.append_events(claim, status(COMPLETED), written_count=1)

    assert dict((await seeds.task(claim.task.id)).metadata) == {}
    await seeds.require_consistent(claim.task.id)


async def test_retries_and_attempts_after_lost_workers_are_counted_apart(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task()
    first = await seeds.claim_run(task_id, max_attempts=2)
    await release_for_retry(store, keys, RunRef(task_id, 1), first.token)
    lease = {"runner": "lost", "lease_us": -1, "working": True, "max_attempts": 2}
    retry = await store.run(claim_run(keys, RunRef(task_id, 1), token="retry", retries=1, **lease))  # type: ignore[arg-type]
    assert isinstance(retry, Claim)
    [lapsed_run] = (await store.run(lapsed_runs(keys, limit=10))).runs

    await begin_next_attempt(store, keys, lapsed_run, delay_us=0)
    next_claim = await claim_and_record(store, keys, RunRef(task_id, 2), "next", retries=1)

    assert isinstance(next_claim, Claim)
    counts = [(claim.turn.attempt, RunOptions.from_json(claim.options).retries) for claim in (first, retry, next_claim)]
    assert counts == [(1, 0), (1, 1), (2, 1)]
    await seeds.require_consistent(task_id)


async def test_a_result_whose_events_are_illegal_ends_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    data_before = await seeds.all_values()

    reply = await store.run(end_by_result(keys, ref, [status(COMPLETED), status(FAILED)]))

    assert reply == Illegal(2, SUBMITTED)
    assert await seeds.all_values() == data_before


async def test_a_result_does_not_end_a_claimed_or_suspended_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    end = end_by_result(keys, claim.ref, [status(COMPLETED)])
    assert await store.run(end) == Unchanged()
    await Suspensions(seeds).suspend_run(claim, wait_for("go"))
    data_before = await seeds.all_values()

    suspended_run = RunRef(claim.ref.task_id, claim.ref.run + 1)
    assert await store.run(end_by_result(keys, suspended_run, [status(COMPLETED)])) == Unchanged()
    assert await seeds.all_values() == data_before


async def test_a_repeated_result_has_the_first_reply(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    end = end_by_result(keys, RunRef(await seeds.create_task(), 1), [chunk("a"), status(COMPLETED)])

    assert await store.run(end) == await store.run(end) == Over(3, COMPLETED)
