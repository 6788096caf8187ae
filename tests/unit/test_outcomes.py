"""Final events of outcomes."""

from __future__ import annotations

from typing import get_args

import pytest
from a2a.types import TaskState

from a2a_celery.lifecycle import (
    Canceled,
    Completed,
    Delegated,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
    final_event,
)
from a2a_celery.lifecycle.outcomes import (
    AGENT_FAILED,
    CANCELED_BY_AGENT,
    INVALID_RESPONSE,
    NEEDS_AUTHORIZATION,
    NEEDS_INPUT,
    agent_message,
)
from a2a_celery.lifecycle.own_metadata import (
    ATTEMPT,
    CAUSE,
    CONTINUES_AT,
    MAX_ATTEMPTS,
    NEXT_ATTEMPT_AT,
    WAITS_FOR,
    own_metadata,
)
from a2a_celery.lifecycle.states import AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING

QUESTION = agent_message("which?", "t", "c")

MEANINGS: list[tuple[Outcome, TaskState]] = [
    (Completed(), COMPLETED),
    (Paused(INPUT_REQUIRED), INPUT_REQUIRED),
    (Paused(AUTH_REQUIRED, QUESTION), AUTH_REQUIRED),
    (Rejection(), REJECTED),
    (Rejection(QUESTION), REJECTED),
    (Refused("Not here."), REJECTED),
    (Failure(), FAILED),
    (Failure("No such city.", "ref"), FAILED),
    (Canceled(), CANCELED),
    (Retried(2, 4, ""), WORKING),
    (Suspended(""), WORKING),
]


@pytest.mark.parametrize(("outcome", "state"), MEANINGS)
def test_an_outcome_has_its_state(outcome: Outcome, state: TaskState) -> None:
    event = final_event(outcome, "t", "c")

    assert event is not None
    assert (event.task_id, event.context_id, event.status.state) == ("t", "c", state)


@pytest.mark.parametrize("outcome", [Paused(INPUT_REQUIRED, QUESTION), Rejection(QUESTION)])
def test_the_agent_s_message_is_sent_with_the_state(outcome: Outcome) -> None:
    event = final_event(outcome, "t", "c")

    assert event is not None
    assert event.status.message == QUESTION


@pytest.mark.parametrize("outcome", [Completed(), Rejection(), Canceled()])
def test_without_a_text_there_is_no_message(outcome: Outcome) -> None:
    event = final_event(outcome, "t", "c")

    assert event is not None
    assert not event.status.HasField("message")


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Paused(INPUT_REQUIRED), NEEDS_INPUT),
        (Paused(AUTH_REQUIRED), NEEDS_AUTHORIZATION),
        (Canceled(CANCELED_BY_AGENT), CANCELED_BY_AGENT),
    ],
)
def test_a_pause_and_a_cancel_say_why(outcome: Outcome, text: str) -> None:
    event = final_event(outcome, "t", "c")

    assert event is not None
    assert [part.text for part in event.status.message.parts] == [text]


def test_a_failure_has_only_a_general_text_and_a_reference() -> None:
    event = final_event(Failure(reference="abc"), "t", "c")

    assert event is not None
    assert [part.text for part in event.status.message.parts] == [AGENT_FAILED]
    assert dict(event.status.message.metadata) == {"reference": "abc", "a2a_celery/reference": "abc"}
    assert (event.status.message.task_id, event.status.message.context_id) == ("t", "c")


def test_an_answer_that_cannot_be_sent_has_its_own_text() -> None:
    event = final_event(Failure(INVALID_RESPONSE, "abc"), "t", "c")

    assert event is not None
    assert [part.text for part in event.status.message.parts] == [INVALID_RESPONSE]
    assert dict(event.status.message.metadata) == own_metadata({"reference": "abc", "error": "INVALID_AGENT_RESPONSE"})


def test_a_refusal_has_its_text() -> None:
    event = final_event(Refused("Not here."), "t", "c")

    assert event is not None
    assert [part.text for part in event.status.message.parts] == ["Not here."]


def test_a_retry_has_the_number_and_time_of_the_next_attempt() -> None:
    event = final_event(Retried(2, 4, "2030-01-01T08:00:00+00:00", "OSError"), "t", "c")

    assert event is not None
    fields = {ATTEMPT: 2, MAX_ATTEMPTS: 4, NEXT_ATTEMPT_AT: "2030-01-01T08:00:00+00:00", CAUSE: "OSError"}
    assert dict(event.metadata) == own_metadata(fields)


def test_a_suspended_run_shows_when_it_continues_and_what_it_waits_for() -> None:
    event = final_event(Suspended("2030-01-01T08:00:00+00:00", "go"), "t", "c")

    assert event is not None
    assert dict(event.metadata) == own_metadata({CONTINUES_AT: "2030-01-01T08:00:00+00:00", WAITS_FOR: "go"})


@pytest.mark.parametrize("outcome", [Lost(), Delegated("{}"), Superseded()])
def test_a_run_without_an_end_of_its_task_has_no_final_event(outcome: Outcome) -> None:
    assert final_event(outcome, "t", "c") is None


def test_every_outcome_is_tested() -> None:
    assert {type(outcome) for outcome, _ in MEANINGS} | {Lost, Delegated, Superseded} == set(get_args(Outcome))
