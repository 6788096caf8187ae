"""Client sessions: the target of the next message, and saved sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import (
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_celery.client import Result, Session
from a2a_celery.lifecycle import INTERRUPTED

RETRY_AFTER_JITTER = 42


def at(state: int) -> Session:
    """Return a session whose last task is in `state`."""
    session = Session()
    session.update(Task(id="t", context_id="c", status=TaskStatus(state=state)))  # type: ignore[arg-type]
    return session


@pytest.mark.parametrize("state", [*TaskState.values(), RETRY_AFTER_JITTER])
def test_the_next_message_is_bound_to_the_task_only_when_that_waits(state: int) -> None:
    message = at(state).message("next")

    if state in INTERRUPTED:
        assert (message.task_id, list(message.reference_task_ids)) == ("t", [])
    else:
        assert (message.task_id, list(message.reference_task_ids)) == ("", ["t"])
    assert (message.context_id, message.role, message.parts[0].text) == ("c", Role.ROLE_USER, "next")
    assert message.message_id


def test_the_first_message_is_bound_to_nothing() -> None:
    message = Session().message("hello")

    assert (message.task_id, message.context_id, list(message.reference_task_ids)) == ("", "", [])
    assert message.message_id != Session().message("hello").message_id


def test_a_context_may_be_given() -> None:
    assert Session("mine").message("hello").context_id == "mine"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("text", Part(text="text")),
        (b"\x00", Part(raw=b"\x00", media_type="application/octet-stream")),
        (Part(url="https://you.example.com/a"), Part(url="https://you.example.com/a")),
        ([Part(text="a")], Part(text="a")),
    ],
)
def test_what_can_be_sent(content: Any, part: Part) -> None:
    assert list(Session().message(content).parts) == [part]


def test_data_can_be_sent() -> None:
    assert Session().message({"a": [1]}).parts[0].data.struct_value.fields["a"].list_value.values[0].number_value == 1


def test_a_message_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot carry this object: pass text"):
        Session().message(object())  # type: ignore[arg-type]


def test_a_message_keeps_its_own_fields() -> None:
    own_message = Message(message_id="mine", task_id="other", reference_task_ids=["r"], parts=[Part(text="x")])

    message = at(TaskState.TASK_STATE_INPUT_REQUIRED).message(own_message)

    assert (message.message_id, message.task_id, list(message.reference_task_ids)) == ("mine", "other", ["r"])
    assert not own_message.context_id, "the one that was given is left alone"


def test_every_event_moves_it_on() -> None:
    session = Session()
    steps: list[tuple[object, tuple[str, str, int | None]]] = [
        (None, ("", "", None)),
        ({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}}, ("c", "t", 1)),
        (StreamResponse(artifact_update=TaskArtifactUpdateEvent(task_id="t", context_id="c")), ("c", "t", 1)),
        (TaskStatusUpdateEvent(task_id="t", status=TaskStatus(state=6)), ("c", "t", 6)),  # type: ignore[arg-type]
        (Result.of(Task(id="t", status=TaskStatus(state=3))), ("c", "t", 3)),  # type: ignore[arg-type]
        (TaskArtifactUpdateEvent(task_id="u", context_id="c"), ("c", "u", None)),
        (Message(message_id="m", context_id="d"), ("d", "u", None)),
        (Task(), ("d", "u", None)),
    ]

    for answer, expected in steps:
        session.update(answer)
        assert (session.context_id, session.task_id, session.state) == expected, answer


@pytest.mark.parametrize("session", [Session(), at(6), at(RETRY_AFTER_JITTER), Session("c")], ids=repr)
def test_it_survives_being_saved(session: Session) -> None:
    assert Session.from_dict(json.loads(json.dumps(session.to_dict()))) == session


GOOD = {"version": 1, "context_id": "c", "task_id": "t", "state": 6}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, "version 1"),
        ([], "version 1"),
        ({}, "version 1"),
        ({**GOOD, "version": 2}, "version 1"),
        ({**GOOD, "version": "1"}, "version 1"),
        ({**GOOD, "more": 1}, "has no more"),
        ({**GOOD, "context_id": None}, "must be strings"),
        ({**GOOD, "task_id": 7}, "must be strings"),
        ({k: v for k, v in GOOD.items() if k != "task_id"}, "must be strings"),
        ({**GOOD, "state": "6"}, "must be a number or null"),
        ({**GOOD, "state": True}, "must be a number or null"),
    ],
    ids=repr,
)
def test_garbage_is_no_saved_session(data: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Session.from_dict(data)
