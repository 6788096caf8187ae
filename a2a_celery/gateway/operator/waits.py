"""Waits of a task: for a worker, a client, another task, a signal or a time, as its log and its steps show them.

The first event after the beginning of a wait, or the first step of the next run, ends the wait. Events have times of
the store and steps times of a worker, so a wait may be wrong by the difference of the clocks. The wait of a suspended
run ends when the run is resumed, and a wait for a worker follows. The store has this time only for the newest
suspension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from a2a.types import TaskStatus

from ...lifecycle import LogEntry
from ...lifecycle.events import EventKind, kind_of
from ...lifecycle.execution import ExecutionState
from ...lifecycle.own_metadata import ATTEMPT, CONTINUES_AT, NAMESPACE, NEXT_ATTEMPT_AT, WAITS_FOR
from ...lifecycle.signals import kind_of_signal
from ...lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED, SUBMITTED, WORKING
from ...store.runs.release import Activities

WORKER = "worker"
"""Kind of the wait of a queued or blocked run."""

MIN_REST_US = 1_000_000
"""µs after the end of a delay from which the wait for a worker is a separate wait."""

CLIENT_WAITS = ("answer", "authorization")
"""Kinds of waits that a message of the client ends."""

RETRY = "retry"
"""Kind of the wait of a run that is retried later."""

WAITS_BY_STATE = {SUBMITTED: WORKER, INPUT_REQUIRED: CLIENT_WAITS[0], AUTH_REQUIRED: CLIENT_WAITS[1]}
"""Kinds of waits by the status with which they begin."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Time in which no worker works on a task.

    Attributes:
        kind: "worker", "answer", "authorization", "signal", "time", "retry", or the kind of a task; see
            `kind_of_signal`.
        name: Id of the task or name of the signal, or "".
        began_us: Beginning in µs since 1970.
        due_us: End of a delay or of the wait's timeout in µs since 1970, or 0.
        ended_us: End in µs since 1970 or, for an open wait, the current time.
        open: True if the task still waits.
    """

    kind: str
    name: str
    began_us: int
    due_us: int = 0
    ended_us: int = 0
    open: bool = False


def waits_of(entries: Sequence[LogEntry], steps: Activities) -> list[Wait]:
    """Return the waits between the events `entries`, oldest first. A wait whose end is missing between two entries of a
    long log is omitted."""
    return [part for wait in _waits(entries, steps) for part in _split(wait, steps.resumed_us)]


def _waits(entries: Sequence[LogEntry], steps: Activities) -> Iterator[Wait]:
    starts = [
        step.transition.at_us for step in steps.activities if step.transition.after is ExecutionState.INITIALIZING
    ]
    wait: Wait | None = None
    version = 0
    for entry in entries:
        is_next, version = entry.version == version + 1, entry.version
        next_wait = _wait_of(entry)
        if wait is not None and is_next and _continues(wait, next_wait, entry):
            continue
        if wait is not None:
            end = _end(wait, starts, entry.recorded_us)
            if is_next or end < entry.recorded_us:
                yield replace(wait, ended_us=end)
        wait = next_wait
    if wait is not None:
        end = _end(wait, starts, steps.now_us)
        yield replace(wait, ended_us=end, open=end == steps.now_us and not steps.running)


def _continues(wait: Wait, next_wait: Wait | None, entry: LogEntry) -> bool:
    """Return True if a wait continues after an event: a repeated question, or a message before the next run."""
    if wait.kind in CLIENT_WAITS:
        return next_wait is not None and next_wait.kind == wait.kind
    return kind_of(entry.event) is EventKind.CLIENT_MESSAGE


def _end(wait: Wait, starts: Sequence[int], latest_us: int) -> int:
    """Return the time at which the next run has begun, at most `latest_us`."""
    return min((start for start in starts if wait.began_us < start < latest_us), default=max(latest_us, wait.began_us))


def _wait_of(entry: LogEntry) -> Wait | None:
    """Return the wait that begins with an event, or None."""
    status = getattr(entry.event, "status", None)
    if not isinstance(status, TaskStatus):
        return None
    metadata = entry.event.metadata.fields
    values = {
        name: metadata[NAMESPACE + name].string_value
        for name in (WAITS_FOR, CONTINUES_AT, NEXT_ATTEMPT_AT, ATTEMPT)
        if NAMESPACE + name in metadata
    }
    if status.state != WORKING or not values:
        return Wait(WAITS_BY_STATE[status.state], "", entry.recorded_us) if status.state in WAITS_BY_STATE else None
    kind, name = kind_of_signal(values.get(WAITS_FOR, ""))
    due_us = _us(values.get(CONTINUES_AT) or values.get(NEXT_ATTEMPT_AT) or "")
    if not name:
        kind = "time" if CONTINUES_AT in values else RETRY if due_us else WORKER
    return Wait(kind, name, entry.recorded_us, due_us)


def _split(wait: Wait, resumed_us: int) -> Iterator[Wait]:
    """Yield the wait until its due time or until its run was resumed, and the wait for a worker after this time."""
    is_suspension = wait.kind not in (WORKER, *CLIENT_WAITS, RETRY)
    is_resumed = is_suspension and wait.began_us < resumed_us <= wait.ended_us
    over_us = resumed_us if is_resumed else wait.due_us
    is_queued = is_resumed and wait.open  # also if the wait for a worker is still short
    if over_us <= wait.began_us or (wait.ended_us - over_us < MIN_REST_US and not is_queued):
        yield wait
        return
    yield replace(wait, ended_us=over_us, open=False)
    yield Wait(WORKER, "", over_us, 0, wait.ended_us, wait.open)


def _us(text: str) -> int:
    """Return an ISO 8601 time in µs since 1970, or 0 for another text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return round(time.timestamp() * 1_000_000)
