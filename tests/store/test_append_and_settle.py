"""Append and settle operations of a run. The claim's token fences them, and each is atomic and idempotent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Message, Part, Role, TaskState

from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import Claim, Illegal, LeftOpen, RunLost, Settled, Written, append, settle_run
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.runs.suspension import suspend_run
from a2a_celery.store.tasks.commands import continue_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status
from tests.support.store.suspensions import timer


def foreign_claims(claim: Claim) -> list[Claim]:
    """Return two claims without write access: one with a different token, one with a different run number."""
    return [replace(claim, token="another"), replace(claim, ref=replace(claim.ref, run=claim.ref.run + 1))]


async def test_events_get_versions_without_a_gap(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id

    first = await seeds.append_events(claim, status(WORKING, "one"), chunk("a"), chunk("b"))
    second = await seeds.append_events(
        claim, chunk("c", append=False), status(WORKING, key={"deep": [1]}), written_count=3
    )

    assert (first, second) == (Written(5, WORKING), Written(7, WORKING))
    log = await seeds.log(task_id)
    assert [entry.version for entry in log] == [1, 2, 3, 4, 5, 6, 7]
    await seeds.require_consistent(task_id)


async def test_event_times_increase_although_the_clock_went_back(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task_id, hour_us = claim.ref.task_id, 3_600_000_000
    last = (await seeds.log(task_id))[-1]
    await store.redis.hset(keys.task(task_id).record, "recorded_at", last.recorded_us + hour_us)

    await seeds.append_events(claim, chunk("a"), chunk("b"), status(WORKING))

    times = [entry.recorded_us - last.recorded_us - hour_us for entry in (await seeds.log(task_id))[-3:]]
    assert times == [1, 2, 3]


async def test_a_writer_without_the_claim_writes_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    for stranger in foreign_claims(claim):
        events = [status(COMPLETED)]
        append_result = await store.run(
            append(keys, stranger.ref, token=stranger.token, written_count=0, events=events)
        )
        result = await store.run(settle_run(keys, stranger.ref, token=stranger.token, written_count=0, events=events))
        assert append_result == result == RunLost()

    assert await seeds.all_values() == data_before


async def test_a_queued_run_can_not_be_written_to(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run()
    task_id = first.ref.task_id
    await seeds.settle_run(first, status(INPUT_REQUIRED))
    await store.run(continue_task(keys, ANN, task_id, request("x", task_id, CONTEXT), "", caller=b"{}", nonce="n"))
    data_before = await seeds.all_values()

    for token in (first.token, ""):
        for run in (1, 2):
            ref = replace(first.ref, run=run)
            assert await store.run(append(keys, ref, token=token, written_count=0, events=[chunk("x")])) == RunLost()

    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("verb", [append, settle_run])
async def test_an_illegal_batch_writes_nothing(store: AsyncStore, keys: Keys, seeds: Seeds, verb: type[object]) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()
    events = [chunk("a"), status(COMPLETED), chunk("after the end")]

    answer = await store.run(verb(keys, claim.ref, token=claim.token, written_count=0, events=events))  # type: ignore[call-arg,arg-type]

    assert answer == Illegal(3, WORKING)
    assert str(answer) == "event 3 is illegal for a task in WORKING"
    assert await seeds.all_values() == data_before


async def test_submitted_is_not_for_a_run_to_say(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()

    answer = await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=[status(SUBMITTED)]))

    assert answer == Illegal(1, WORKING)


async def test_a_repeated_batch_is_answered_and_not_written(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    first = await seeds.append_events(claim, chunk("a"), chunk("b"))
    data_before = await seeds.all_values()

    second_result = await seeds.append_events(claim, chunk("a"), chunk("b"))

    assert second_result == first
    assert await seeds.all_values() == data_before


async def test_a_repeated_batch_that_ended_the_task_is_answered_too(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    first = await seeds.append_events(claim, status(COMPLETED))
    data_before = await seeds.all_values()

    second_result = await seeds.append_events(claim, status(COMPLETED))

    assert second_result == first
    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("state", [COMPLETED, FAILED, REJECTED])
async def test_a_terminal_event_ends_task_and_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await store.run(continue_task(keys, ANN, task_id, request("late", task_id), "", caller=b"{}", nonce="n"))

    await seeds.append_events(claim, chunk("a"), status(state, "bye"))

    assert (await seeds.task(task_id)).status.state == state
    assert await store.redis.zcard(keys.leases) == 0
    for key in (keys.task(task_id).record, keys.task(task_id).log):
        assert 0 < await store.redis.ttl(key) <= RETENTION
    data_before = await seeds.all_values()
    result = await store.run(append(keys, claim.ref, token=claim.token, written_count=2, events=[status(FAILED)]))
    assert result == RunLost()
    assert await seeds.all_values() == data_before
    await seeds.require_consistent(task_id)


async def test_a_message_alone_completes_the_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(working=False)
    answer = Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="42")])

    await seeds.settle_run(claim, answer)

    task = await seeds.task(claim.ref.task_id)
    assert (task.status.state, task.status.message) == (COMPLETED, answer)
    await seeds.require_consistent(claim.ref.task_id)


@pytest.mark.parametrize("pause", [INPUT_REQUIRED, AUTH_REQUIRED])
async def test_a_settled_pause_frees_the_run(store: AsyncStore, keys: Keys, seeds: Seeds, pause: TaskState) -> None:
    claim = await seeds.claim_run()

    answer = await seeds.settle_run(claim, chunk("so far"), status(pause, "which?"))

    assert answer == Settled(4, pause, None)
    assert await store.redis.zcard(keys.leases) == 0
    assert await store.redis.ttl(keys.task(claim.ref.task_id).record) == -1
    assert (
        await store.run(append(keys, claim.ref, token=claim.token, written_count=2, events=[chunk("x")])) == RunLost()
    )
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_pause_that_is_appended_does_not_end_the_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()

    await seeds.append_events(claim, status(AUTH_REQUIRED, "log in, please"))

    assert await seeds.append_events(claim, status(WORKING), written_count=1) == Written(4, WORKING)


@pytest.mark.parametrize("events", [[], [chunk("a")], [status(WORKING, "still")]])
async def test_a_task_is_not_left_in_a_working_state_without_a_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, events: list[object]
) -> None:
    claim = await seeds.claim_run()

    answer = await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=0, events=events))  # type: ignore[arg-type]

    assert answer == LeftOpen(WORKING)
    final = await store.run(
        settle_run(keys, claim.ref, token=claim.token, written_count=len(events), events=[status(FAILED)])
    )
    assert isinstance(final, Settled)
    assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
    assert len(await seeds.log(claim.ref.task_id)) == 3 + len(events)


async def test_the_next_turn_begins_with_its_message_at_the_end_of_the_run(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    further = continue_task(keys, ANN, task_id, request("next", task_id, CONTEXT), "", caller=b"{}", nonce="n")
    await store.run(further)

    answer = await seeds.settle_run(claim, status(INPUT_REQUIRED, "and?"))

    task = await seeds.task(task_id)
    assert answer == Settled(5, SUBMITTED, 2)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, INPUT_REQUIRED, SUBMITTED]
    assert [message.parts[0].text for message in task.history] == ["hello", "and?", "next"]
    assert await store.redis.zrange(keys.dispatch, 0, -1) == [f"{task_id}.2".encode()]
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_repeated_settlement_is_answered_as_before(
    store: AsyncStore, keys: Keys, seeds: Seeds, waiting: bool
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    if waiting:
        message_request = request("next", task_id, CONTEXT)
        await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))
    first = await seeds.settle_run(claim, status(INPUT_REQUIRED))
    data_before = await seeds.all_values()

    second_result = await seeds.settle_run(claim, status(INPUT_REQUIRED))

    assert second_result == first
    assert await seeds.all_values() == data_before


LAST_WRITES: dict[str, tuple[Callable[..., Operation[Any]], dict[str, Any]]] = {
    "settle": (settle_run, {"events": [status(INPUT_REQUIRED)]}),
    "suspend": (suspend_run, {"events": [], "wait": timer(wait_us=3_600_000_000), "options": b""}),
    "retry": (release_run, {"events": [], "options": b"", "retries": 1, "delay_us": 60_000_000}),
}


@pytest.mark.parametrize("kind", LAST_WRITES)
@pytest.mark.parametrize("is_message_first", [False, True])
async def test_the_last_write_of_a_run_has_the_same_reply_when_a_message_has_begun_the_next_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, kind: str, is_message_first: bool
) -> None:
    claim = await seeds.claim_run()
    operation, arguments = LAST_WRITES[kind]
    last_write = operation(keys, claim.ref, token=claim.token, written_count=0, **arguments)
    message_request = request("next", claim.ref.task_id, CONTEXT)
    message = continue_task(
        keys, ANN, claim.ref.task_id, message_request, "", caller=b"{}", nonce="n", on_message="interrupt"
    )
    if is_message_first:
        await store.run(message)
    first = await store.run(last_write)
    await store.run(message)  # with the same nonce, so a second call has no effect
    data_before = await seeds.all_values()

    assert await store.run(last_write) == first
    assert not isinstance(first, RunLost | Illegal)
    assert await seeds.all_values() == data_before
