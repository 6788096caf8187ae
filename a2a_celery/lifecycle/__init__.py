"""Lifecycle of an A2A task: states, events, outcomes and the fold that turns a log into a task.

The package performs no I/O and depends on neither Redis nor Celery.
"""

from .events import Event, EventId, EventKind, LogEntry, decode, encode, event_of_response, kind_of
from .fold import apply, fold
from .outcomes import (
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
    as_left,
    final_event,
)
from .states import INTERRUPTED, LEGAL, TERMINAL, is_interrupted, is_legal, is_terminal

__all__ = [
    "INTERRUPTED",
    "LEGAL",
    "TERMINAL",
    "Canceled",
    "Completed",
    "Delegated",
    "Event",
    "EventId",
    "EventKind",
    "Failure",
    "LogEntry",
    "Lost",
    "Outcome",
    "Paused",
    "Refused",
    "Rejection",
    "Retried",
    "Superseded",
    "Suspended",
    "apply",
    "as_left",
    "decode",
    "encode",
    "event_of_response",
    "final_event",
    "fold",
    "is_interrupted",
    "is_legal",
    "is_terminal",
    "kind_of",
]
