"""Exceptions that Celery pickles, as a prefork child and some result backends do."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from a2a.types import Part, Task, TaskState, TaskStatus
from celery.utils.serialization import get_pickleable_exception

import a2a_celery
from a2a_celery import client, errors, testing
from a2a_celery.client import Result, calling, notifications
from a2a_celery.lifecycle.questions import Violation

RESULT = Result(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_FAILED)))

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "AnswerRefused": ("message.parts[0].text", [Violation(".size", "Send a number.")]),
    "AgentUnreachable": ("gone", 7.0),
    "CallEnded": ("failed", RESULT.to_dict()),
    "CallRefused": ("refused", 403),
    "ChildFailed": ("failed", "echo", "t", "FAILED", RESULT),
    "ChildRefused": ("refused", "echo"),
    "DeadlineExceeded": ("late", RESULT),
    "LimitExceededError": ("many", {"limit": "creates", "retryAfter": 3}),
    "NotificationTooLarge": (100,),
    "Ping": (),
    "PublicKeysUnavailable": (),
    "StepFailed": ("pay", "shop.Broke", "no money"),
    "TaskNotCompleted": (RESULT,),
}
"""Arguments of the constructors. Subclasses without an entry use the entry of their base class, or a text."""

KINDS = {
    kind
    for module in (errors, client, calling, notifications, testing, a2a_celery)
    for kind in (getattr(module, name) for name in dir(module))
    if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__.startswith("a2a_celery")
}


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickle_with_its_attributes(kind: type[BaseException]) -> None:
    error = kind(*next((ARGUMENTS[base.__name__] for base in kind.__mro__ if base.__name__ in ARGUMENTS), ("text",)))

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert (str(copy), repr(copy), copy.args) == (str(error), repr(error), error.args)
    assert {name: _comparable(value) for name, value in vars(copy).items()} == {
        name: _comparable(value) for name, value in vars(error).items()
    }
    if isinstance(error, Exception):
        assert get_pickleable_exception(error) is error


def test_a_signal_keeps_its_parts_and_its_notes() -> None:
    error = errors.Failed("no room", parts=[Part(text="try tomorrow")])
    error.add_note("a note")

    copy = pickle.loads(pickle.dumps(error))

    assert copy.parts == error.parts
    assert copy.__notes__ == ["a note"]


def _comparable(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Result) else value
