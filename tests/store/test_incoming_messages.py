"""Messages to a task with an open run. The agent's `on_message` option decides how the store handles a message."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from a2a.types import TaskState

from a2a_celery.agents import OnMessage
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.features.steering.section import SteeringSection, read_messages
from a2a_celery.lifecycle import EventKind, kind_of
from a2a_celery.lifecycle.refusals import Reason
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pubsub import PubSubListener
from a2a_celery.store.runs.commands import Claim, RunLost, Settled, end_run, settle_run
from a2a_celery.store.runs.recovery import GivenUp, return_run
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.runs.renewal import Renewal, renew_runs
from a2a_celery.store.runs.suspension import SuspendedRun, suspend_run
from a2a_celery.store.tasks.commands import MAX_WAITING_TURNS, continue_task, request_cancel
from a2a_celery.store.tasks.replies import (
    Known,
)
from tests.support.store.replies import begins, is_delivered, reason_of, waits
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, request, run_concurrently, status
from tests.support.store.suspensions import timer
from tests.support.waiting import eventually_async

FINAL = [COMPLETED, INPUT_REQUIRED, AUTH_REQUIRED]


class Conversation:
    """Test helper that sends messages to tasks, and reads the messages that a run can read."""

    def __init__(self, store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
        self.store, self.keys, self.seeds = store, keys, seeds

    async def send(
        self, claim: Claim | str, text: str, on_message: OnMessage = "steer", nonce: str = "", **options: object
    ) -> Any:
        task_id = claim if isinstance(claim, str) else claim.ref.task_id
        message_request = request(text, task_id, CONTEXT)
        nonce = nonce or uuid4().hex
        return await self.store.run(
            continue_task(
                self.keys,
                ANN,
                task_id,
                message_request,
                "",
                caller=b"{}",
                nonce=nonce,
                on_message=on_message,
                **options,
            )  # type: ignore[arg-type]
        )

    async def unread(self, claim: Claim, received_count: int = 0) -> list[str]:
        """Return the texts of the messages that the run can read."""
        messages = await self.store.run(read_messages(self.keys, claim.ref, token=claim.token, received=received_count))
        assert isinstance(messages, list), messages
        return [message.parts[0].text for message in messages]

    async def settle(
        self, claim: Claim, state: TaskState | None, text: str = "", *, read_count: int = 0, question_count: int = 0
    ) -> Settled:
        """Settle a run that has read `read_count` messages. The run ends with a status of `state`, or without events if
        it is None."""
        events = [] if state is None else [status(state, text)]
        answer = await self.store.run(
            settle_run(
                self.keys,
                claim.ref,
                token=claim.token,
                written_count=0,
                events=events,
                ask_count=question_count,
                read_count=read_count,
            )
        )
        assert isinstance(answer, Settled), answer
        return answer

    async def history(self, claim: Claim | str) -> list[str]:
        """Return the texts of the task's messages."""
        task_id = claim if isinstance(claim, str) else claim.ref.task_id
        return [message.parts[0].text for message in (await self.seeds.task(task_id)).history]

    async def next_claim(self, claim: Claim, **options: object) -> Claim:
        """Claim the run after `claim`."""
        run = claim.ref.run + 1
        return await self.seeds.claim_run(claim.ref.task_id, run=run, steering=True, **options)  # type: ignore[arg-type]


@pytest.fixture
def conversation(store: AsyncStore, keys: Keys, seeds: Seeds) -> Conversation:
    return Conversation(store, keys, seeds)


def read_before(claim: Claim) -> tuple[int, ...]:
    """Return the indexes of the messages that the agent read before it asked the questions that the turn answers."""
    indexes: tuple[int, ...] = claim.value_of(SteeringSection)
    return indexes


def text_of(claim: Claim) -> str:
    """Return the text of the message that began the claimed turn."""
    return claim.turn.request.message.parts[0].text


async def test_a_steering_message_is_in_log_and_history_at_once_and_the_run_reads_it(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    log_before = await seeds.log(claim.ref.task_id)

    answers = [await conversation.send(claim, text) for text in ("left", "right")]

    log = await seeds.log(claim.ref.task_id)
    assert all(is_delivered(answer) for answer in answers)
    assert [answer.newest.version for answer in answers] == [len(log_before) + 1, len(log_before) + 2]  # type: ignore[union-attr]
    assert [kind_of(entry.event) for entry in log[len(log_before) :]] == [EventKind.CLIENT_MESSAGE] * 2
    assert await conversation.history(claim) == ["hello", "left", "right"]
    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
    assert await conversation.unread(claim) == ["left", "right"]
    assert await conversation.unread(claim, received_count=1) == ["right"]
    assert await conversation.unread(claim, received_count=2) == []
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_run_that_waits_for_a_worker_can_read_it_too(conversation: Conversation, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    assert is_delivered(await conversation.send(task_id, "left"))

    claim = await seeds.claim_run(task_id)
    assert text_of(claim) == "hello"
    assert await conversation.unread(claim) == ["left"]


@pytest.mark.parametrize("on_message", ["steer", "interrupt"])
async def test_its_worker_is_notified(
    conversation: Conversation, keys: Keys, seeds: Seeds, redis_server: EmbeddedRedis, on_message: OnMessage
) -> None:
    listener = PubSubListener(redis_server.store_url)
    notifications: list[bytes] = []
    await listener.start()
    await listener.on_message(keys.runner("runner"), notifications.append)
    claim = await seeds.claim_run()

    async def is_notified() -> bool:
        # repeated, because the subscriber may not be connected yet
        await conversation.send(claim, "left", on_message)
        return bool(notifications)

    await eventually_async(is_notified)
    await listener.stop()
    assert notifications[0] == f"{claim.ref.name} {on_message}".encode()


@pytest.mark.parametrize("state", FINAL)
async def test_unread_messages_become_the_next_turn_whatever_the_end(
    conversation: Conversation, seeds: Seeds, state: TaskState
) -> None:
    claim = await seeds.claim_run()
    for text in ("left", "right", "back"):
        await conversation.send(claim, text)

    result = await conversation.settle(claim, state, "done", read_count=1)

    task = await seeds.task(claim.ref.task_id)
    assert (result.state, result.next_run) == (WORKING, 2)
    assert task.status.state == WORKING
    assert await conversation.history(claim) == ["hello", "left", "right", "back", "done"]
    next_claim = await conversation.next_claim(claim)
    assert (text_of(next_claim), next_claim.turn.number, next_claim.turn.attempt) == ("right", 2, 1)
    assert next_claim.turn.interrupted_state == (INPUT_REQUIRED if state == COMPLETED else state)
    assert await conversation.unread(next_claim) == ["back"]
    result = await conversation.settle(next_claim, COMPLETED, read_count=1)
    assert (result.state, result.next_run) == (COMPLETED, None)
    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, *[WORKING] * 3, COMPLETED]
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_run_that_has_read_everything_ends_the_task(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")

    assert (await conversation.settle(claim, COMPLETED, read_count=1)).state == COMPLETED

    await seeds.require_consistent(claim.ref.task_id)


async def test_a_pause_that_was_written_before_the_end_is_followed_by_the_turn(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, status(INPUT_REQUIRED, "which?"))
    await conversation.send(claim, "this")

    result = await conversation.store.run(
        settle_run(conversation.keys, claim.ref, token=claim.token, written_count=1, events=[])
    )

    assert isinstance(result, Settled)
    assert (result.state, result.next_run) == (WORKING, 2)
    assert (await conversation.next_claim(claim)).turn.interrupted_state == INPUT_REQUIRED
    await seeds.require_consistent(claim.ref.task_id)


@pytest.mark.parametrize("state", [FAILED, REJECTED, CANCELED])
async def test_a_run_that_fails_ends_the_task_and_unread_messages_stay_in_the_history(
    conversation: Conversation, seeds: Seeds, state: TaskState
) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")

    result = await conversation.settle(claim, state, "no")

    assert (result.state, result.next_run) == (state, None)
    assert await conversation.history(claim) == ["hello", "left"]
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_repeated_end_returns_the_same_next_run_and_writes_nothing(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    first = await conversation.settle(claim, COMPLETED)
    data_before = await seeds.all_values()

    assert await conversation.settle(claim, COMPLETED) == first

    assert await seeds.all_values() == data_before


async def test_a_message_and_an_end_at_once_lose_nothing(conversation: Conversation, seeds: Seeds) -> None:
    for _ in range(20):
        claim = await seeds.claim_run()
        reply, settlement = await run_concurrently(
            conversation.send(claim, "left"), conversation.settle(claim, COMPLETED)
        )

        if is_delivered(reply):
            assert settlement.next_run == 2
            assert text_of(await conversation.next_claim(claim)) == "left"
        else:
            assert settlement.state == COMPLETED
        await seeds.require_consistent(claim.ref.task_id)


async def test_two_clients_at_once_are_read_in_the_order_of_the_log(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()

    await run_concurrently(*(conversation.send(claim, str(number)) for number in range(20)))

    history = (await conversation.history(claim))[1:]
    assert sorted(history, key=int) == [str(number) for number in range(20)]
    assert await conversation.unread(claim) == history


async def test_the_next_attempt_of_a_lost_run_reads_the_messages_again(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run(max_attempts=2)
    await conversation.send(claim, "left")
    assert await conversation.unread(claim) == ["left"]

    assert (await seeds.recover_run(claim.ref)).outcome == "again"

    next_claim = await conversation.next_claim(claim, max_attempts=2)
    assert (text_of(next_claim), next_claim.turn.attempt) == ("hello", 2)
    assert await conversation.unread(next_claim) == ["left"]
    read_result = await conversation.store.run(
        read_messages(conversation.keys, claim.ref, token=claim.token, received=0)
    )
    assert read_result == RunLost()
    assert (await conversation.settle(next_claim, COMPLETED, read_count=1)).state == COMPLETED


async def test_the_run_after_a_wait_reads_the_messages_again(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run(steering=True)
    await conversation.send(claim, "left")
    suspension = suspend_run(
        conversation.keys,
        claim.ref,
        token=claim.token,
        written_count=0,
        events=[],
        wait=timer(wait_us=0),
        options=b"",
        sections=[section for section, _ in claim.sections],
    )

    assert isinstance(await conversation.store.run(suspension), SuspendedRun)

    assert await conversation.unread(await conversation.next_claim(claim)) == ["left"]


async def test_a_turn_that_answers_a_question_reads_the_messages_before_it_again(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    await conversation.settle(claim, INPUT_REQUIRED, "how far?", read_count=1, question_count=1)
    assert begins(await conversation.send(claim, "ten"))
    next_claim = await conversation.next_claim(claim)
    await conversation.send(next_claim, "right")
    await conversation.settle(next_claim, INPUT_REQUIRED, "how fast?", read_count=1, question_count=2)
    await conversation.send(claim, "slowly")

    last = await conversation.next_claim(next_claim)

    history = [message.parts[0].text for message in last.task.history]
    assert last.turn.ask_count == 2
    assert [history[index] for index in last.turn.messages] == ["hello", "ten", "slowly"]
    assert [history[index] for index in read_before(last)] == ["left", "right"]
    await conversation.settle(last, INPUT_REQUIRED, "what else?")
    await conversation.send(claim, "nothing")
    newest_claim = await conversation.next_claim(last)
    assert (newest_claim.turn.ask_count, len(newest_claim.turn.messages), read_before(newest_claim)) == (0, 1, ())
    await seeds.require_consistent(claim.ref.task_id)


async def test_an_unread_message_answers_the_question(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    await conversation.send(claim, "ten")

    await conversation.settle(claim, INPUT_REQUIRED, "how far?", read_count=1, question_count=1)

    next_claim = await conversation.next_claim(claim)
    history = [message.parts[0].text for message in next_claim.task.history]
    assert history == ["hello", "left", "ten", "how far?"]
    assert [history[index] for index in next_claim.turn.messages] == ["hello", "ten"]
    assert [history[index] for index in read_before(next_claim)] == ["left"]
    assert (next_claim.turn.ask_count, next_claim.turn.interrupted_state) == (1, INPUT_REQUIRED)


async def test_a_requeued_turn_that_answers_a_question_has_the_same_messages(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    await conversation.settle(claim, INPUT_REQUIRED, "how far?", read_count=1, question_count=1)
    await conversation.send(claim, "ten")
    next_claim = await conversation.next_claim(claim)
    await conversation.send(next_claim, "right")
    await seeds.recover_run(next_claim.ref)

    new_id, _ = await seeds.requeue_task(claim.ref.task_id)

    requeued = await seeds.claim_run(new_id, steering=True)
    history = [message.parts[0].text for message in requeued.task.history]
    assert history == ["hello", "left", "how far?", "ten"]
    assert (requeued.turn.ask_count, requeued.turn.messages, read_before(requeued)) == (1, (0, 3), (1,))
    dead_record = await seeds.store.redis.hgetall(seeds.keys.task(claim.ref.task_id).record)
    assert not {b"turn_messages", b"read_messages"} & dead_record.keys()


async def test_a_cancel_ends_the_task_with_its_unread_messages(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    await conversation.store.run(request_cancel(conversation.keys, ANN, claim.ref.task_id, CONTEXT))

    result = await conversation.settle(claim, INPUT_REQUIRED, "how far?")

    assert (result.state, result.next_run) == (CANCELED, None)
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_message_interrupts_a_claimed_run(conversation: Conversation, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("half"))
    renewal = renew_runs(keys, [(claim.ref, claim.token)], lease_us=LEASE_US)

    reply = await conversation.send(claim, "rather this", "interrupt")

    assert is_delivered(reply)
    assert await conversation.store.run(renewal) == Renewal(frozenset(), frozenset(), frozenset({claim.ref.name}))
    result = await conversation.store.run(settle_run(keys, claim.ref, token=claim.token, written_count=1, events=[]))
    assert isinstance(result, Settled)
    assert (result.state, result.next_run) == (WORKING, 2)
    next_claim = await conversation.next_claim(claim)
    assert (text_of(next_claim), next_claim.turn.number) == ("rather this", 2)
    assert await conversation.store.run(
        renew_runs(keys, [(next_claim.ref, next_claim.token)], lease_us=LEASE_US)
    ) == Renewal(frozenset(), frozenset())
    assert (await conversation.settle(next_claim, COMPLETED)).state == COMPLETED
    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING, WORKING, COMPLETED]
    await seeds.require_consistent(claim.ref.task_id)


async def test_the_newest_of_several_messages_begins_the_turn(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    for text in ("this", "that", "neither"):
        await conversation.send(claim, text, "interrupt")

    await conversation.settle(claim, None)

    next_claim = await conversation.next_claim(claim)
    assert text_of(next_claim) == "neither"
    assert await conversation.history(claim) == ["hello", "this", "that", "neither"]
    assert (await conversation.settle(next_claim, COMPLETED)).next_run is None


@pytest.mark.parametrize("state", [*FINAL, FAILED, REJECTED])
async def test_an_interrupted_run_ends_no_task(conversation: Conversation, seeds: Seeds, state: TaskState) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "rather this", "interrupt")

    assert (await conversation.settle(claim, state, "the end", question_count=1)).state == WORKING

    next_claim = await conversation.next_claim(claim)
    assert (text_of(next_claim), next_claim.turn.ask_count) == ("rather this", 0)
    await seeds.require_consistent(claim.ref.task_id)


@pytest.mark.parametrize("serialize_context", [True, False])
async def test_a_message_replaces_a_run_that_no_worker_has_claimed(
    conversation: Conversation, keys: Keys, seeds: Seeds, serialize_context: bool
) -> None:
    first = await seeds.create_task(serialize_context=serialize_context)
    second = await seeds.create_task(serialize_context=serialize_context)

    answers = [await conversation.send(task_id, "rather this", "interrupt") for task_id in (first, second)]

    assert [(answer.run, answer.is_blocked) for answer in answers] == [(2, False), (2, serialize_context)]  # type: ignore[union-attr]
    due_names, blocked_names = [f"{first}.2".encode(), f"{second}.2".encode()], []
    if serialize_context:
        blocked_names = [due_names.pop()]
    assert sorted(await seeds.store.redis.zrange(keys.dispatch, 0, -1)) == sorted(due_names)
    assert await seeds.store.redis.zrange(f"{keys.dispatch}:blocked", 0, -1) == blocked_names
    claim = await seeds.claim_run(first, run=2)
    assert (text_of(claim), claim.turn.number) == ("rather this", 2)
    assert await conversation.history(claim) == ["hello", "rather this"]
    await conversation.settle(claim, COMPLETED)
    assert text_of(await seeds.claim_run(second, run=2)) == "rather this"
    await seeds.require_consistent(first)


async def test_an_interrupted_run_keeps_the_place_of_its_task_in_the_context(
    conversation: Conversation, seeds: Seeds
) -> None:
    first = await seeds.create_task(serialize_context=True)
    await seeds.create_task(serialize_context=True)
    claim = await seeds.claim_run(first)
    await conversation.send(claim, "rather this", "interrupt")

    result = await conversation.settle(claim, None)

    assert (result.next_run, result.other) == (2, None)
    assert text_of(await conversation.next_claim(claim)) == "rather this"


async def test_the_turn_begins_when_the_interrupted_worker_is_lost(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "rather this", "interrupt")
    result = await conversation.store.run(
        end_run(conversation.keys, claim.ref, runner="runner", event=status(FAILED, "lost"), lost=True)
    )
    assert type(result).__name__ == "Unchanged"

    assert (await seeds.recover_run(claim.ref)).outcome == "again"

    next_claim = await conversation.next_claim(claim)
    assert (text_of(next_claim), next_claim.turn.number, next_claim.turn.attempt) == ("rather this", 2, 1)
    await seeds.require_consistent(claim.ref.task_id)


async def test_the_turn_begins_when_the_interrupted_worker_shuts_down(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "rather this", "interrupt")

    result = await conversation.store.run(
        return_run(conversation.keys, claim.ref, runner="runner", loss=status(FAILED, "lost"))
    )

    assert isinstance(result, GivenUp)
    assert (await seeds.recover_run(claim.ref)).outcome == "again"
    assert text_of(await conversation.next_claim(claim)) == "rather this"


async def test_the_turn_begins_when_the_interrupted_run_is_to_be_retried(
    conversation: Conversation, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "rather this", "interrupt")

    await conversation.store.run(
        release_run(
            conversation.keys,
            claim.ref,
            token=claim.token,
            written_count=0,
            events=[status(WORKING)],
            options=b"",
            retries=1,
            delay_us=0,
        )
    )

    assert text_of(await conversation.next_claim(claim)) == "rather this"
    assert await conversation.store.redis.zrange(conversation.keys.leases, 0, -1) == [f"{claim.ref.task_id}.2".encode()]


async def test_a_cancel_wins_over_an_interruption(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await conversation.send(claim, "rather this", "interrupt")
    await conversation.store.run(request_cancel(conversation.keys, ANN, claim.ref.task_id, CONTEXT))

    result = await conversation.settle(claim, None)

    assert (result.state, result.next_run) == (CANCELED, None)
    assert await conversation.history(claim) == ["hello", "rather this"]
    await seeds.require_consistent(claim.ref.task_id)


async def test_reject_refuses_a_message_and_writes_nothing(conversation: Conversation, seeds: Seeds) -> None:
    for task_id in (await seeds.create_task(), (await seeds.claim_run()).ref.task_id):
        data_before = await seeds.all_values()

        assert reason_of(await conversation.send(task_id, "more", "reject")) is Reason.WORKING

        assert await seeds.all_values() == data_before
    assert begins(await conversation.send(await seeds.create_task_in(INPUT_REQUIRED), "this", "reject"))


async def test_renewal_names_the_runs_with_waiting_messages(
    conversation: Conversation, keys: Keys, seeds: Seeds
) -> None:
    claims = [await seeds.claim_run() for _ in range(2)]
    await conversation.send(claims[0], "left")

    renewal = await conversation.store.run(renew_runs(keys, [(c.ref, c.token) for c in claims], lease_us=LEASE_US))

    assert renewal == Renewal(frozenset(), frozenset(), frozenset(), frozenset({claims[0].ref.name}))


@pytest.mark.parametrize("on_message", ["steer", "interrupt"])
async def test_limits_and_repeats_are_those_of_any_message(
    conversation: Conversation, seeds: Seeds, on_message: OnMessage
) -> None:
    claim = await seeds.claim_run()
    key = IdempotencyKey.of(seeds.keys, ANN, "m1", "digest", 60_000)
    first = await conversation.send(claim, "left", on_message, sections=[key])
    assert is_delivered(first)
    data_before = await seeds.all_values()

    second_result = await conversation.send(claim, "left", on_message, sections=[key])
    conflict = await conversation.send(
        claim, "left", on_message, sections=[IdempotencyKey.of(seeds.keys, ANN, "m1", "other", 60_000)]
    )
    too_large = await conversation.send(claim, "left", on_message, max_bytes=1)

    assert second_result == Known(claim.ref.task_id, first.newest.version, 0)
    assert (reason_of(conflict), reason_of(too_large)) == (Reason.SAME_MESSAGE_ID, Reason.TOO_LARGE)
    assert await seeds.all_values() == data_before
    for _ in range(MAX_WAITING_TURNS - 1):
        await conversation.send(claim, "more", on_message)
    assert reason_of(await conversation.send(claim, "one more", on_message)) is Reason.TOO_MANY_MESSAGES


@pytest.mark.parametrize("on_message", ["steer", "interrupt"])
async def test_a_call_that_is_repeated_as_its_reply_was_lost_delivers_once(
    conversation: Conversation, seeds: Seeds, on_message: OnMessage
) -> None:
    claim = await seeds.claim_run()
    first = await conversation.send(claim, "left", on_message, nonce="a")
    data_before = await seeds.all_values()

    assert await conversation.send(claim, "left", on_message, nonce="a") == first

    assert await seeds.all_values() == data_before


async def test_a_run_cannot_read_a_message_that_interrupts_it(conversation: Conversation, seeds: Seeds) -> None:
    """A run with ``on_message="steer"`` can receive such a message while the option is being changed."""
    claim = await seeds.claim_run()
    await conversation.send(claim, "left")
    await conversation.send(claim, "stop", "interrupt")
    await conversation.send(claim, "right")

    assert await conversation.unread(claim) == ["left"]
    assert (await conversation.settle(claim, CANCELED, read_count=1)).next_run == 2

    next_claim = await conversation.next_claim(claim)
    assert text_of(next_claim) == "stop"
    assert await conversation.unread(next_claim) == ["right"]
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_message_from_before_the_option_keeps_its_place(conversation: Conversation, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    assert waits(await conversation.send(claim, "queued", "queue"))
    await conversation.send(claim, "steering")

    assert await conversation.unread(claim) == []
    await conversation.settle(claim, INPUT_REQUIRED)

    next_claim = await conversation.next_claim(claim)
    assert text_of(next_claim) == "queued"
    assert await conversation.unread(next_claim) == ["steering"]
    await conversation.settle(next_claim, COMPLETED, read_count=1)
    await seeds.require_consistent(claim.ref.task_id)
