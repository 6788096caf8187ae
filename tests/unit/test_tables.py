"""Output of commands: tables fit a terminal and are complete for programs, and failures have their reference."""

from __future__ import annotations

import sys

import pytest
from a2a.types import StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import InternalError, InvalidParamsError

from a2a_celery.cli.output import error_line, event_line, table
from a2a_celery.lifecycle.outcomes import Failure, agent_message, final_event

ROWS = [("a", "short"), ("b", "x" * 40)]


def test_a_pipe_gets_complete_lines() -> None:
    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 40}"]


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")

    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 13}…"]


def test_a_failure_shows_its_reference() -> None:
    failed = final_event(Failure(reference="0123456789ab"), "t", "c")
    assert isinstance(failed, TaskStatusUpdateEvent)
    working = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=agent_message("half", "t", "c"))

    assert event_line(StreamResponse(status_update=failed)) == "FAILED: The agent failed. [reference 0123456789ab]"
    assert event_line(StreamResponse(status_update=TaskStatusUpdateEvent(status=working))) == "WORKING: half"


def test_an_error_shows_its_reference_and_each_wrong_field_once() -> None:
    wrong = {"errors": [{"field": "id", "message": "Field is required."}, {"field": "tenant", "message": "Unknown."}]}

    assert error_line(InternalError("Internal error", {"reference": "0123"})) == "Internal error [reference 0123]"
    assert error_line(InvalidParamsError("id: wrong", wrong)) == "id: wrong; tenant: Unknown."
    assert error_line(InvalidParamsError("two\nlines")) == "two lines"
