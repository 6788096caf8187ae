"""A run that goes on without its worker: Celery's retries. Copies of a message from before the retry begin nothing."""

from __future__ import annotations

import pytest

from a2a_celery.lifecycle.states import COMPLETED, FAILED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.answers import CanceledNow
from a2a_celery.store.dispatch import hold_runs, mark_published, take_due_runs
from a2a_celery.store.recovery import Requeued, hand_back
from a2a_celery.store.release import Released, hand_on, release_run
from a2a_celery.store.runs import Behind, Claim, Dropped, RunLost, RunRef, append, claim_run
from a2a_celery.store.tasks import request_cancel
from tests.support.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, status

OPTIONS = b'{"retries":1}'


async def claimed(store: AsyncStore, keys: Keys, ref: RunRef, token: str, retries: int = 0) -> Claim | Dropped | Behind:
    """What a worker gets that has a message of the `retries`-th retry, and tells of it if it must."""
    event = status(WORKING, attempt=retries + 1)
    lease = {"runner": "here.1.x", "lease_us": LEASE_US, "working": True}
    answer = await store.run(claim_run(keys, ref, token=token, retries=retries, **lease))  # type: ignore[arg-type]
    if isinstance(answer, Behind):
        again = claim_run(keys, ref, token=token, retries=retries, retried=event, **lease)  # type: ignore[arg-type]
        answer = await store.run(again)
    return answer


async def retried(store: AsyncStore, keys: Keys, ref: RunRef, token: str, retries: int = 1) -> None:
    """The run goes back, for its `retries`-th retry."""
    events = [status(WORKING, attempt=retries + 1)]
    answer = await store.run(
        release_run(
            keys, ref, token=token, before=0, events=events, options=OPTIONS, retries=retries, again_us=60_000_000
        )
    )
    assert isinstance(answer, Released)


async def test_a_copy_of_the_first_message_does_not_begin_the_retry(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    """It came twice, or a watcher had published it once more; the retry's own message waits for its time."""
    ref = RunRef(await seeds.created(), 1)
    assert isinstance(await claimed(store, keys, ref, "first"), Claim)
    await retried(store, keys, ref, "first")

    assert isinstance(await claimed(store, keys, ref, "copy"), Dropped)
    assert isinstance(await claimed(store, keys, ref, "retry", retries=1), Claim)
    assert isinstance(await claimed(store, keys, ref, "copy"), Dropped)
    await seeds.require_consistent(ref.task_id)


@pytest.mark.parametrize("retries", [1, 3])
async def test_a_run_with_retries_behind_it_is_claimed_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, retries: int
) -> None:
    """A run that is handed back, or lost, goes on as a new run and keeps its retries: two copies are two copies."""
    task_id = await seeds.created()
    first, next_run = RunRef(task_id, 1), RunRef(task_id, 2)
    assert isinstance(await claimed(store, keys, first, "first"), Claim)
    await retried(store, keys, first, "first", retries)
    await store.run(hand_back(keys, first, runner=None, lost=status(FAILED, "lost")))
    assert isinstance(await claimed(store, keys, next_run, "mine", retries), Claim)

    assert isinstance(await claimed(store, keys, next_run, "copy", retries), Dropped)
    written = await store.run(
        append(keys, next_run, token="mine", before=0, events=[chunk("still mine", append=False)])
    )
    assert not isinstance(written, RunLost)
    await seeds.require_consistent(task_id)


async def test_a_retry_that_is_faster_than_the_run_before_it_takes_it_over(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    ref = RunRef(await seeds.created(), 1)
    assert isinstance(await claimed(store, keys, ref, "first"), Claim)

    assert isinstance(await claimed(store, keys, ref, "retry", retries=1), Claim)

    lost = await store.run(append(keys, ref, token="first", before=0, events=[status(COMPLETED)]))
    assert isinstance(lost, RunLost)
    assert isinstance(await claimed(store, keys, ref, "copy", retries=1), Dropped)
    await seeds.require_consistent(ref.task_id)


async def test_a_retry_that_is_handed_back_is_answered_twice_alike(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.created(), 1)
    assert isinstance(await claimed(store, keys, ref, "first"), Claim)
    await retried(store, keys, ref, "first")
    operation = hand_back(keys, ref, runner=None, lost=status(FAILED, "lost"))

    first, again = await store.run(operation), await store.run(operation)

    assert first == again == Requeued(ANN.agent, 2, OPTIONS)


async def test_a_retry_in_hand_is_not_due_since_the_first_message_was(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    ref = RunRef(await seeds.created(), 1)
    await store.run(mark_published(keys, ref, again_us=1000))
    await store.run(hold_runs(keys, [ref], silent_us=LEASE_US, again_us=LEASE_US))
    assert isinstance(await claimed(store, keys, ref, "first"), Claim)
    await retried(store, keys, ref, "first")

    await store.run(hold_runs(keys, [ref], silent_us=LEASE_US, again_us=LEASE_US))

    assert await store.run(take_due_runs(keys, limit=10, again_us=0)) == []


async def test_a_canvas_that_is_cancelled_is_named_in_each_answer(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    """The first answer may be lost on its way, and the canvas is to be revoked."""
    claim = await seeds.claimed()
    await store.run(hand_on(keys, claim.ref, token=claim.token, before=0, events=[], canvas='{"result":["x",null]}'))
    operation = request_cancel(keys, ANN, claim.ref.task_id, CONTEXT)

    first, again = await store.run(operation), await store.run(operation)

    assert isinstance(first, CanceledNow)
    assert first.canvas == b'{"result":["x",null]}'
    assert again == first
