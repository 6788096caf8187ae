"""What an A2A task may become: states, events, outcomes and the fold that turns a log into a task.

Pure: no clock, no network, no Redis, no Celery. Everything here can be tested by calling it.
"""

from .events import Event, EventKind, LogEntry, decode, encode, kind_of, opened
from .fold import apply, fold
from .outcomes import (
    Canceled,
    Completed,
    Failed,
    HandedOn,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejected,
    Retried,
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
    "Event",
    "EventKind",
    "Failed",
    "HandedOn",
    "LogEntry",
    "Lost",
    "Outcome",
    "Paused",
    "Refused",
    "Rejected",
    "Retried",
    "apply",
    "as_left",
    "decode",
    "encode",
    "final_event",
    "fold",
    "is_interrupted",
    "is_legal",
    "is_terminal",
    "kind_of",
    "opened",
]
