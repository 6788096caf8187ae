"""Client messages that create or continue a task."""

from __future__ import annotations

import pytest
from a2a.types import SendMessageRequest, TaskState

from a2a_celery.lifecycle import EventKind, kind_of
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    SUBMITTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.tasks.commands import MAX_WAITING_TURNS, continue_task, create_task, read_task
from tests.support.store.replies import begins, reason_of, waits
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, status


def next_message(
    keys: Keys, task_id: str, text: str = "more", *, scope: Scope = ANN, context: str = "", nonce: str = "nonce"
):  # type: ignore[no-untyped-def]
    """Return the operation that sends another message to a task."""
    message_request: SendMessageRequest = request(text, task_id, CONTEXT)
    return continue_task(keys, scope, task_id, message_request, context, caller=b"{}", nonce=nonce)


async def test_a_new_task_is_submitted_with_its_message_and_waits_for_a_worker(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    message_request = request("hello", "t", "c")

    result = await store.run(create_task(keys, ANN, "t", "c", message_request, caller=b"{}", retention=RETENTION))

    page = await store.run(read_log(keys, "t", 0))
    assert result.newest.version == page.version == 1
    assert result.task == await seeds.task("t") == page.entries[0].event
    assert (result.task.id, result.task.context_id, result.task.status.state) == ("t", "c", SUBMITTED)
    assert list(result.task.history) == [message_request.message]
    assert await store.redis.zrange(keys.dispatch, 0, -1) == [b"t.1"]


async def test_each_message_is_stored_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    text = "the text of a message"
    create = create_task(keys, ANN, "t", CONTEXT, request(text, "t"), caller=b"{}", retention=RETENTION)
    await store.run(create)
    first_claim = await seeds.claim_run("t")
    await seeds.settle_run(first_claim, status(INPUT_REQUIRED))
    await store.run(next_message(keys, "t", f"{text} that continues"))

    claim = await seeds.claim_run("t", run=2)

    assert [part.text for part in first_claim.turn.request.message.parts] == [text]
    assert [part.text for part in claim.turn.request.message.parts] == [f"{text} that continues"]
    assert repr(await seeds.all_values()).count(text) == 2


async def test_a_repeated_create_returns_the_first_result_and_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    call = create_task(keys, ANN, "t", "c", request(), caller=b"{}", retention=RETENTION)
    first = await store.run(call)
    submitted_at = first.task.status.timestamp.ToNanoseconds()
    await seeds.claim_run("t")
    data_before = await seeds.all_values()

    second_result = await store.run(call)

    assert (second_result.newest.version, second_result.task.status.timestamp.ToNanoseconds()) == (1, submitted_at)
    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("state", [SUBMITTED, COMPLETED])
@pytest.mark.parametrize("scope", [BOB, Scope("other", ANN.tenant, ANN.owner), Scope(ANN.agent, "acme", ANN.owner)])
async def test_the_id_of_a_task_of_another_scope_is_refused(
    store: AsyncStore, keys: Keys, seeds: Seeds, scope: Scope, state: TaskState
) -> None:
    await seeds.create_task(task_id="t")
    if state == COMPLETED:
        await seeds.settle_run(await seeds.claim_run("t"), status(COMPLETED))
    data_before = await seeds.all_values()

    reply = await store.run(create_task(keys, scope, "t", "c", request(), caller=b"{}", retention=RETENTION))

    assert reason_of(reply) is Reason.SAME_TASK_ID
    assert await seeds.all_values() == data_before


async def test_a_repeated_create_finds_the_task_after_its_end(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    call = create_task(keys, ANN, "t", "c", request(task_id="t"), caller=b"{}", retention=RETENTION)
    await store.run(call)
    await seeds.settle_run(await seeds.claim_run("t"), status(COMPLETED))
    data_before = await seeds.all_values()

    assert begins(await store.run(call))
    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("pause", [INPUT_REQUIRED, AUTH_REQUIRED])
async def test_a_message_to_a_paused_task_begins_the_next_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, pause: TaskState
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await seeds.settle_run(claim, status(pause, "which?"))
    length = len(await seeds.log(task_id))

    answer = await store.run(next_message(keys, task_id, "this"))

    task, log = await seeds.task(task_id), await seeds.log(task_id)
    assert begins(answer)
    assert (answer.run, answer.task, answer.newest.version) == (2, task, length + 2)
    assert [kind_of(entry.event) for entry in log[length:]] == [EventKind.CLIENT_MESSAGE, EventKind.STATUS]
    assert task.status.state == SUBMITTED
    assert [message.parts[0].text for message in task.history] == ["hello", "which?", "this"]
    assert await store.redis.zrange(keys.dispatch, 0, -1) == [f"{task_id}.2".encode()]
    await seeds.require_consistent(task_id)


async def test_messages_to_an_open_run_wait_in_order(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    task_before = await seeds.task(task_id)

    places = [await store.run(next_message(keys, task_id, word, nonce=word)) for word in ("one", "two", "three")]

    assert [answer.preceding_turns for answer in places] == [1, 2, 3]
    assert await seeds.task(task_id) == task_before  # a message that waits is not in the task yet
    texts = []
    for _ in range(3):
        result = await seeds.settle_run(claim, status(INPUT_REQUIRED))
        assert result.next_run == claim.ref.run + 1
        assert result.state == SUBMITTED
        claim = await seeds.claim_run(task_id, run=result.next_run)
        texts.append(claim.turn.request.message.parts[0].text)
    assert texts == ["one", "two", "three"]
    assert (await seeds.settle_run(claim, status(COMPLETED))).next_run is None
    await seeds.require_consistent(task_id)


async def test_a_message_to_a_queued_run_waits_too(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    answer = await store.run(next_message(keys, task_id))

    assert waits(answer)
    assert answer.preceding_turns == 1


async def test_the_number_of_waiting_messages_is_limited(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    for number in range(MAX_WAITING_TURNS):
        await store.run(next_message(keys, task_id, nonce=str(number)))
    data_before = await seeds.all_values()

    answer = await store.run(next_message(keys, task_id, nonce="one more"))

    assert reason_of(answer) is Reason.TOO_MANY_MESSAGES
    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("state", [COMPLETED, FAILED])
async def test_a_message_to_an_ended_task_is_refused_with_its_state(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState
) -> None:
    task_id = await seeds.create_task_in(state)
    data_before = await seeds.all_values()

    answer = await store.run(next_message(keys, task_id))

    assert answer == Refusal(Reason.ENDED, task_id, {"state": state})
    assert await seeds.all_values() == data_before


async def test_a_message_that_names_another_context_is_refused(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    data_before = await seeds.all_values()

    answer = await store.run(next_message(keys, task_id, context="elsewhere"))

    assert answer == Refusal(Reason.OTHER_CONTEXT, task_id, {"context": CONTEXT})
    assert await seeds.all_values() == data_before
    assert begins(await store.run(next_message(keys, task_id, context=CONTEXT)))


async def test_a_task_of_another_caller_is_missing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    data_before = await seeds.all_values()

    answer = await store.run(next_message(keys, task_id, scope=BOB))

    assert reason_of(answer) is reason_of(await store.run(next_message(keys, "none"))) is Reason.MISSING
    assert await store.run(read_task(keys, BOB, task_id)) is None
    assert await seeds.all_values() == data_before


async def test_a_repeated_message_that_began_a_run_is_answered_as_before(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    call = next_message(keys, task_id)
    first = await store.run(call)
    data_before = await seeds.all_values()

    second_result = await store.run(call)

    assert second_result == first
    assert await seeds.all_values() == data_before


async def test_a_repeated_message_that_waits_is_answered_as_before(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    call = next_message(keys, task_id)
    first = await store.run(call)
    data_before = await seeds.all_values()

    second_result = await store.run(call)

    assert second_result == first
    assert await seeds.all_values() == data_before


async def test_a_repeated_message_whose_run_has_ended_began_that_run(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    call = next_message(keys, task_id)
    await store.run(call)
    await seeds.settle_run(await seeds.claim_run(task_id, run=2), status(COMPLETED))

    second_result = await store.run(call)

    assert begins(second_result)
    assert (second_result.run, second_result.task) == (2, await seeds.task(task_id))


async def test_messages_that_are_repeated_after_other_messages_wait_once(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    calls = [next_message(keys, task_id, nonce=nonce) for nonce in ("1", "2", "3")]
    results = [await store.run(call) for call in calls]
    data_before = await seeds.all_values()

    second_results = [await store.run(call) for call in calls]

    for first, second, third in (results, second_results):
        assert begins(first)
        assert waits(second)
        assert waits(third)
        assert (second.preceding_turns, third.preceding_turns) == (1, 2)
    assert await seeds.all_values() == data_before


async def test_a_claim_of_the_next_run_shows_working_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    await store.run(next_message(keys, task_id, "go on"))

    claim = await seeds.claim_run(task_id, run=2)

    assert (claim.turn.number, claim.turn.attempt) == (2, 1)
    assert claim.turn.request.message.parts[0].text == "go on"
    assert claim.task == await seeds.task(task_id)
    assert claim.task.status.state == WORKING
