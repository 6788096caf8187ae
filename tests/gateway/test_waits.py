"""Waits of a task, as its timeline shows them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from a2a.types import Message, Role, Task, TaskStatus

from a2a_celery.gateway.operator.waits import Wait, waits_of
from a2a_celery.lifecycle import Event, LogEntry
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.own_metadata import retry_metadata, suspension_metadata
from a2a_celery.lifecycle.states import AUTH_REQUIRED, COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store.runs.release import Activities
from tests.support.store.seeds import chunk, status

SECOND = 1_000_000
ACCEPTED = Task(status=TaskStatus(state=SUBMITTED))
CLAIMED = status(WORKING)
ASKED = status(INPUT_REQUIRED)
ANSWER = Message(role=Role.ROLE_USER)
RETRIED = status(WORKING, **retry_metadata(2, 3, "", ""))


def at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def suspended(signal: str = "", second: int = 0) -> Event:
    return status(WORKING, **suspension_metadata(at(second) if second else "", signal))


def log(*events: tuple[int, Event], first: int = 1) -> list[LogEntry]:
    """Return the entries of events, each with its time in seconds."""
    return [LogEntry(version, second * SECOND, event) for version, (second, event) in enumerate(events, first)]


def steps(*starts: int, now: int = 1000, running: bool = False) -> Activities:
    """Return steps with a run that begins at each of the seconds `starts`."""
    transitions = [Transition(1, ExecutionState.IDLE, ExecutionState.INITIALIZING, start * SECOND) for start in starts]
    stored = [Activity(run, 1, "w", transition) for run, transition in enumerate(transitions, 1)]
    return Activities(stored, "agent", "c", WORKING, len(starts) or 1, running, now * SECOND)


def brief(waits: list[Wait]) -> list[Any]:
    return [
        (wait.kind, wait.name, wait.began_us // SECOND, wait.ended_us // SECOND, *(["open"] if wait.open else []))
        for wait in waits
    ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0, ACCEPTED), (720, CLAIMED), (800, status(COMPLETED))], [("worker", "", 0, 720)]),
        ([(0, ACCEPTED), (5, chunk("a")), (6, status(COMPLETED))], [("worker", "", 0, 5)]),
        ([(0, ACCEPTED)], [("worker", "", 0, 1000, "open")]),
        (
            [(0, ASKED), (50, ASKED), (90, ANSWER), (90, status(SUBMITTED)), (95, CLAIMED)],
            [("answer", "", 0, 90), ("worker", "", 90, 95)],
        ),
        ([(0, status(AUTH_REQUIRED))], [("authorization", "", 0, 1000, "open")]),
        ([(0, suspended("child/7a")), (40, CLAIMED)], [("child", "7a", 0, 40)]),
        ([(0, suspended("approval")), (10, ANSWER), (40, CLAIMED)], [("signal", "approval", 0, 40)]),
        ([(0, suspended("approval", 30)), (40, CLAIMED)], [("signal", "approval", 0, 30), ("worker", "", 30, 40)]),
        ([(0, suspended(second=30)), (30, CLAIMED)], [("time", "", 0, 30)]),
        ([(0, suspended(second=2000))], [("time", "", 0, 1000, "open")]),
        (
            [(0, status(WORKING, **retry_metadata(2, 3, at(30), "timeout"))), (90, CLAIMED)],
            [("retry", "", 0, 30), ("worker", "", 30, 90)],
        ),
        ([(0, CLAIMED), (5, ANSWER), (9, status(WORKING, "text")), (10, status(COMPLETED))], []),
    ],
)  # fmt: skip
def test_a_wait_lasts_until_the_next_event(events: list[tuple[int, Event]], expected: list[Any]) -> None:
    assert brief(waits_of(log(*events), steps())) == expected


def test_a_run_whose_claim_is_not_in_the_log_ends_the_wait() -> None:
    events = log((0, ACCEPTED), (1, CLAIMED), (60, RETRIED), (300, status(COMPLETED)))

    assert brief(waits_of(events, steps(1, 75))) == [("worker", "", 0, 1), ("worker", "", 60, 75)]
    assert brief(waits_of(events[:3], steps(1))) == [("worker", "", 0, 1), ("worker", "", 60, 1000, "open")]
    assert not waits_of(events[:3], steps(1, running=True))[-1].open, "the first step is not written yet"


def test_a_run_that_a_signal_has_resumed_waits_for_a_worker() -> None:
    waiting, resumed = log((0, suspended("approval", 2000))), replace(steps(), resumed_us=40 * SECOND)

    assert brief(waits_of(waiting, resumed)) == [("signal", "approval", 0, 40), ("worker", "", 40, 1000, "open")]
    assert brief(waits_of([*waiting, *log((90, CLAIMED), first=2)], resumed)) == [
        ("signal", "approval", 0, 40), ("worker", "", 40, 90),
    ]  # fmt: skip
    later = log((50, suspended("child/7a")), (60, RETRIED))
    assert [wait.kind for wait in waits_of(later, resumed)] == ["child", "worker"], "an earlier wait was resumed"


def test_a_wait_whose_end_is_omitted_is_left_out() -> None:
    ends = [*log((0, ACCEPTED), (5, suspended("approval"))), *log((300, CLAIMED), first=9)]

    assert brief(waits_of(ends, steps())) == [("worker", "", 0, 5)]
