"""Context queues. The runs of a context start one at a time and in order, however the previous run ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Dropped, Settled, Unchanged, claim_run, end_run, settle_run
from a2a_celery.store.runs.publication import acquire_due_runs, report_prefetched
from a2a_celery.store.runs.recovery import return_run
from a2a_celery.store.runs.release import delegate_to_canvas, end_by_result, release_run
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task, end_pauses, request_cancel
from a2a_celery.store.tasks.replies import Accepted
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, BOB, CONTEXT, LEASE_US, RETENTION, Seeds, request, run_concurrently, status


async def queued_tasks(seeds: Seeds, count: int = 2) -> list[str]:
    """Create `count` tasks in a context with serialized runs, and return their ids."""
    return [await seeds.create_task(task_id=f"t{n}", serialize_context=True) for n in range(count)]


async def due(seeds: Seeds) -> list[str]:
    """Return the names of the runs that are scheduled to be published."""
    return [name.decode() for name in await seeds.store.redis.zrange(seeds.keys.dispatch, 0, -1)]


async def blocked_runs(seeds: Seeds) -> list[str]:
    return [name.decode() for name in await seeds.store.redis.zrange(seeds.keys.blocked, 0, -1)]


async def answer_task(seeds: Seeds, task_id: str) -> Accepted:
    """Send an answer to a paused task, and return the run that the answer begins."""
    message_request = request("answer", task_id, CONTEXT)
    answer = await seeds.store.run(
        continue_task(seeds.keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n")
    )
    assert begins(answer), answer
    return answer


async def test_the_second_run_of_a_context_waits_and_is_not_published(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    def create(task_id: str, scope: Any = ANN, context_id: str = CONTEXT) -> Any:
        message_request = request(task_id=task_id, context_id=context_id)
        return create_task(
            keys, scope, task_id, context_id, message_request, caller=b"{}", retention=RETENTION, serialize_context=True
        )

    first, second = await store.run(create("one")), await store.run(create("two"))
    others = [await store.run(create("bob", BOB)), await store.run(create("else", context_id="another"))]

    assert (first.is_blocked, second.is_blocked) == (False, True)
    assert [other.is_blocked for other in others] == [False, False]
    assert begins(await store.run(create("two")))
    assert (await store.run(create("two"))).is_blocked
    assert sorted(await due(seeds)) == ["bob.1", "else.1", "one.1"]
    assert await blocked_runs(seeds) == ["two.1"]
    assert (await seeds.task("two")).status.state == SUBMITTED


async def test_a_blocked_run_cannot_be_claimed_prefetched_or_returned(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    _, waiting_id = await queued_tasks(seeds)
    ref = RunRef(waiting_id, 1)
    data_before = await seeds.all_values()
    failure = status_event(waiting_id, CONTEXT, FAILED)

    claim = await store.run(claim_run(keys, ref, token="t", runner="r", lease_us=LEASE_US, working=True))
    await store.run(report_prefetched(keys, [ref], silent_us=1, delay_us=LEASE_US))
    assert await store.run(return_run(keys, ref, runner=None, loss=failure)) == Unchanged()

    assert claim == Dropped("another run of its context comes first")
    assert await seeds.all_values() == data_before
    assert await store.run(end_run(keys, ref, runner="r", event=failure, lost=True)) == Unchanged()
    assert await blocked_runs(seeds) == [ref.name]
    assert ref.name not in await due(seeds)


Ends = Callable[[Seeds, str], Awaitable[object]]


async def _settle(seeds: Seeds, task_id: str) -> object:
    return await seeds.settle_run(await seeds.claim_run(task_id), status(COMPLETED))


async def _pause(seeds: Seeds, task_id: str) -> object:
    return await seeds.settle_run(await seeds.claim_run(task_id), status(INPUT_REQUIRED))


async def _append(seeds: Seeds, task_id: str) -> object:
    return await seeds.append_events(await seeds.claim_run(task_id), status(FAILED))


async def _lapse(seeds: Seeds, task_id: str) -> object:
    return await seeds.recover_run((await seeds.claim_run(task_id)).ref)


async def _cancel(seeds: Seeds, task_id: str) -> object:
    return await seeds.store.run(request_cancel(seeds.keys, ANN, task_id, CONTEXT))


async def _cancel_running(seeds: Seeds, task_id: str) -> object:
    claim = await seeds.claim_run(task_id)
    await _cancel(seeds, task_id)
    return await seeds.settle_run(claim, status(INPUT_REQUIRED))


async def _lost_with_its_process(seeds: Seeds, task_id: str) -> object:
    ref = (await seeds.claim_run(task_id)).ref
    return await seeds.store.run(
        end_run(seeds.keys, ref, runner="runner", event=status_event(task_id, CONTEXT, FAILED), lost=True)
    )


async def _expire(seeds: Seeds, task_id: str) -> object:
    event = status_event(task_id, CONTEXT, FAILED)
    return await seeds.store.run(end_run(seeds.keys, RunRef(task_id, 1), runner=None, event=event))


async def _stop(seeds: Seeds, task_id: str) -> object:
    ref = (await seeds.claim_run(task_id)).ref
    failure = status_event(task_id, CONTEXT, FAILED)
    return await seeds.store.run(return_run(seeds.keys, ref, runner="runner", loss=failure))


async def _canvas(seeds: Seeds, task_id: str) -> object:
    claim = await seeds.claim_run(task_id)
    await seeds.store.run(
        delegate_to_canvas(seeds.keys, claim.ref, token=claim.token, written_count=0, events=[], canvas="{}")
    )
    assert await due(seeds) == [], "what a canvas works for is not over"
    return await seeds.store.run(end_by_result(seeds.keys, claim.ref, [status(COMPLETED)]))


async def _elsewhere(seeds: Seeds, task_id: str) -> object:
    return await seeds.store.run(end_by_result(seeds.keys, RunRef(task_id, 1), [status(COMPLETED)]))


async def _delete(seeds: Seeds, task_id: str) -> object:
    return await seeds.store.run(delete_task(seeds.keys, ANN, task_id))


ENDS: list[Ends] = [
    _settle, _pause, _append, _lapse, _cancel, _cancel_running, _lost_with_its_process, _expire, _stop, _canvas,
    _elsewhere, _delete,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
async def test_every_end_of_the_first_run_unblocks_the_next(seeds: Seeds, end: Ends) -> None:
    first, second, third = await queued_tasks(seeds, 3)

    await end(seeds, first)

    assert await due(seeds) == [f"{second}.1"]
    assert await blocked_runs(seeds) == [f"{third}.1"]
    await seeds.settle_run(await seeds.claim_run(second), status(COMPLETED))
    assert (await due(seeds), await blocked_runs(seeds)) == ([f"{third}.1"], [])
    await seeds.settle_run(await seeds.claim_run(third), status(COMPLETED))
    assert not [key for key in await seeds.all_values() if ":context_queue:" in key]


@pytest.mark.parametrize("end", [_cancel, _expire, _delete, _elsewhere], ids=lambda end: end.__name__[1:])
async def test_a_blocked_run_that_ends_leaves_the_queue(seeds: Seeds, end: Ends) -> None:
    first, second, third = await queued_tasks(seeds, 3)

    await end(seeds, second)

    assert (await due(seeds), await blocked_runs(seeds)) == ([f"{first}.1"], [f"{third}.1"])
    await _settle(seeds, first)
    assert (await due(seeds), await blocked_runs(seeds)) == ([f"{third}.1"], [])


async def test_settling_returns_the_next_run_and_other_ends_make_it_due_at_once(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    first, second, third = await queued_tasks(seeds, 3)

    result = await _settle(seeds, first)

    assert isinstance(result, Settled)
    assert (result.next_run, result.other) == (None, RunRef(second, 1))
    assert await store.run(acquire_due_runs(keys, limit=9, delay_us=1)) == [], "the caller of settle_run publishes it"
    await _cancel(seeds, second)
    assert [run.ref for run in await store.run(acquire_due_runs(keys, limit=9, delay_us=1))] == [RunRef(third, 1)]


async def test_a_run_that_continues_keeps_its_turn(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first, second = await queued_tasks(seeds)
    failure = status_event(first, CONTEXT, FAILED)
    claim = await seeds.claim_run(first, max_attempts=3)
    await store.run(
        release_run(keys, claim.ref, token=claim.token, written_count=0, events=[], options=b"", retries=1, delay_us=1)
    )
    assert await due(seeds) == [claim.ref.name]
    assert await store.run(return_run(keys, claim.ref, runner=None, loss=failure)) != Unchanged()
    assert await due(seeds) == [f"{first}.2"]
    claim = await seeds.claim_run(first, run=2, max_attempts=3)
    await seeds.recover_run(claim.ref)
    assert await due(seeds) == [f"{first}.3"]

    assert await blocked_runs(seeds) == [f"{second}.1"]
    await seeds.settle_run(await seeds.claim_run(first, run=3), status(COMPLETED))
    assert await due(seeds) == [f"{second}.1"]


async def test_a_pause_unblocks_the_next_run_and_its_answer_queues_last(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    first, second, third = await queued_tasks(seeds, 3)
    await _pause(seeds, first)

    answer = await answer_task(seeds, first)

    assert answer.is_blocked
    assert await blocked_runs(seeds) == [f"{third}.1", f"{first}.2"]
    await _settle(seeds, second)
    await _settle(seeds, third)
    assert await due(seeds) == [f"{first}.2"]
    await seeds.settle_run(await seeds.claim_run(first, run=2), status(COMPLETED))


@pytest.mark.parametrize("others", [0, 1])
async def test_a_message_that_waited_for_the_pause_joins_the_context_queue(
    store: AsyncStore, keys: Keys, seeds: Seeds, others: int
) -> None:
    first, *rest = await queued_tasks(seeds, 1 + others)
    claim = await seeds.claim_run(first)
    message_request = request("ahead", first, CONTEXT)
    await store.run(continue_task(keys, ANN, first, message_request, "", caller=b"{}", nonce="n"))

    result = await seeds.settle_run(claim, status(INPUT_REQUIRED))

    assert (result.next_run, result.other) == ((None, RunRef(rest[0], 1)) if rest else (2, None))
    assert await due(seeds) == ([f"{rest[0]}.1"] if rest else [f"{first}.2"])
    assert await blocked_runs(seeds) == ([f"{first}.2"] if rest else [])
    settlement = settle_run(keys, claim.ref, token=claim.token, written_count=0, events=[status(INPUT_REQUIRED)])
    second_result = await store.run(settlement)
    assert isinstance(second_result, Settled)
    assert second_result.next_run == result.next_run, "what another is told, a watcher sees to"


async def test_an_unanswered_pause_blocks_no_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first, second = await queued_tasks(seeds)
    claim = await seeds.claim_run(first)
    failure = status_event(first, CONTEXT, FAILED)
    await store.run(
        settle_run(
            keys, claim.ref, token=claim.token, written_count=0, events=[status(INPUT_REQUIRED)], pause_us=1,
            pause_timeout=failure,
        )
    )  # fmt: skip

    assert await store.run(end_pauses(keys, limit=9)) == 1
    assert await due(seeds) == [f"{second}.1"]


async def test_a_requeued_task_is_blocked_too(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first, second = await queued_tasks(seeds)
    await _lapse(seeds, first)

    new_id, outcome = await seeds.requeue_task(first)

    assert outcome == "blocked"
    assert (await due(seeds), await blocked_runs(seeds)) == ([f"{second}.1"], [f"{new_id}.1"])
    await _settle(seeds, second)
    assert await due(seeds) == [f"{new_id}.1"]
    await _lapse(seeds, new_id)
    assert (await seeds.requeue_task(new_id))[1] == "requeued"


async def test_concurrent_workers_run_each_task_once_and_one_at_a_time(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    tasks = await run_concurrently(*(seeds.create_task(serialize_context=True) for _ in range(30)))
    task_ids: list[str] = []
    remaining_ids = set(tasks)

    while names := await due(seeds):
        assert len(names) == 1
        task_id = names[0].rpartition(".")[0]
        task_ids.append(task_id)
        claim = await seeds.claim_run(task_id)
        remaining_ids.discard(task_id)
        await run_concurrently(seeds.settle_run(claim, status(COMPLETED)), _cancel(seeds, remaining_ids.pop()))

    assert len(task_ids) == len(set(task_ids)) == 15
    assert await blocked_runs(seeds) == []
