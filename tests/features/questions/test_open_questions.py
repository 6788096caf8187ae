"""Open questions: the schema, which is stored with the pause, applied to each answer and deleted with the pause, and
refused answers."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_celery.features.questions.answer_section import AnswerSection, OpenQuestion
from a2a_celery.features.questions.question_section import QuestionSection
from a2a_celery.lifecycle.refusals import Reason
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import Claim, Settled, settle_run
from a2a_celery.store.tasks.commands import continue_task, end_pauses, request_cancel
from tests.support.store.limits import limit_sections
from tests.support.store.replies import begins, is_delivered, reason_of, waits
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request, status

SCHEMA = '{"type": "integer"}'


async def pause_task(store: AsyncStore, keys: Keys, seeds: Seeds, *, run: int = 1, task_id: str = "") -> str:
    """Create a task that waits for an answer with a schema, or continue the task `task_id`. Return the task's id."""
    claim = await seeds.claim_run(task_id, run=run)
    end = settle_run(
        keys,
        claim.ref,
        token=claim.token,
        written_count=0,
        events=[status(INPUT_REQUIRED, "How many?")],
        pause_us=1,
        pause_timeout=status(FAILED, "too late"),
        sections=[QuestionSection(SCHEMA)],
    )
    assert isinstance(await store.run(end), Settled)
    return claim.ref.task_id


def answering(keys: Keys, task_id: str, answered_run: int | None = None, nonce: str = "n") -> Operation[Any]:
    message = request("3", task_id, CONTEXT)
    limits = limit_sections(keys, concurrent=0) if answered_run is None else []
    sections = [AnswerSection(answered_run), *limits]
    return continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce=nonce, sections=sections)


async def test_an_answer_is_accepted_when_it_is_known_to_fit(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await pause_task(store, keys, seeds)
    data_before = await seeds.all_values()

    assert await store.run(answering(keys, task_id)) == OpenQuestion(1, SCHEMA.encode())
    assert await seeds.all_values() == data_before
    assert begins(await store.run(answering(keys, task_id, 1)))
    assert not await store.redis.hexists(keys.task(task_id).record, "answer_schema")
    assert begins(await store.run(answering(keys, task_id, 1))), "a repeated call"


async def test_a_message_of_another_context_is_refused_before_its_validation(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await pause_task(store, keys, seeds)
    message = request("3", task_id, CONTEXT)
    call = continue_task(keys, ANN, task_id, message, "other", caller=b"{}", nonce="n", sections=[AnswerSection()])

    assert reason_of(await store.run(call)) is Reason.OTHER_CONTEXT


async def test_an_answer_to_an_earlier_question_is_validated_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await pause_task(store, keys, seeds)
    await store.run(answering(keys, task_id, 1))
    await pause_task(store, keys, seeds, run=2, task_id=task_id)

    result = await store.run(answering(keys, task_id, 1, nonce="other"))

    assert result == OpenQuestion(2, SCHEMA.encode())


async def test_a_message_that_waits_for_a_run_is_not_asked(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()

    assert waits(await store.run(answering(keys, claim.ref.task_id, 0)))


@pytest.mark.parametrize("end", ["cancel", "timeout"])
async def test_the_schema_goes_with_the_task(store: AsyncStore, keys: Keys, seeds: Seeds, end: str) -> None:
    task_id = await pause_task(store, keys, seeds)

    if end == "cancel":
        await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
    else:
        assert await store.run(end_pauses(keys, limit=1)) == 1

    assert not await store.redis.hexists(keys.task(task_id).record, "answer_schema")


async def test_an_unread_message_answers_the_question_whose_answer_was_refused(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    async def ask(claim: Claim, **options: int) -> None:
        events = [status(INPUT_REQUIRED, "How many?")]
        end = settle_run(keys, claim.ref, token=claim.token, written_count=0, events=events, **options)
        assert isinstance(await store.run(end), Settled)

    async def send(text: str) -> Any:
        message = request(text, task_id, CONTEXT)
        return await store.run(
            continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce=text, on_message="steer")
        )

    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await ask(claim, ask_count=1)
    assert begins(await send("many"))
    refused = await seeds.claim_run(task_id, run=2)
    assert is_delivered(await send("3"))
    await ask(refused, ask_count=2, refuses_answer=True)

    next_claim = await seeds.claim_run(task_id, run=3)

    history = [message.parts[0].text for message in next_claim.task.history]
    assert [history[index] for index in next_claim.turn.messages] == ["hello", "3"]
    assert (next_claim.turn.ask_count, next_claim.turn.number) == (2, 3)
