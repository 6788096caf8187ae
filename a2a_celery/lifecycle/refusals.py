"""Refusals: why a task does not allow what a caller asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from a2a.types import TaskState

from .states import short_name


class Reason(Enum):
    """Reason of a `Refusal`. The value is a sentence, in which names of the data are in braces."""

    MISSING = "no task {task}: its id is wrong, or a2a_retention has passed"
    LIMITED = "the limit {limit!r} is reached"
    SAME_MESSAGE_ID = "another message had this id within the last {window:g} seconds: send a new id"
    SAME_TASK_ID = "a task of another agent, tenant or owner has this id: pass another id"
    OTHER_CONTEXT = "the task belongs to context {context!r}: send this context id or none"
    ENDED = (
        "the task has ended ({state}) and accepts no more messages: send this one without a task id, with this task in "
        "referenceTaskIds"
    )
    TOO_MANY_MESSAGES = "{maximum} messages wait for this task: send this message again later"
    WORKING = (
        "the task is working and accepts no message: send this message when the task asks for input, or without a task "
        "id, with this task in referenceTaskIds"
    )
    TOO_LARGE = (
        "this message would make the task larger than {maximum} bytes: send the message without a task id, in the same "
        "context, to create a new task"
    )
    NO_MORE_EVENTS = "the task has ended and is archived: it has no further events to deliver"
    SIGNAL_AFTER_END = "task {task} is {short_state}: it has ended and receives no signals"
    NO_SIGNALS = "task {task}: its agent {agent!r} receives no signals: only agents that are functions do"
    TOO_MANY_SIGNALS = (
        "task {task} has {maximum} signals that no run has received: send this signal when its agent has received some"
    )
    SIGNAL_TOO_LARGE = "task {task} would be larger than {maximum} bytes with this signal"
    NOT_CANCELABLE = "the task has ended already: {state}"
    FEATURE = "{text}"
    """Reason of a feature, which is in the data."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of what a caller asks for a task. Nothing was written.

    Attributes:
        task_id: Id of the task.
        data: Values of the names in the sentence of the reason. `state` is a `TaskState`. With LIMITED, also `maximum`
            (0 for the limit "memory") and `retry_in`, the estimated seconds until the store can accept the message, or
            0.0 if unknown.
    """

    reason: Reason
    task_id: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return one sentence, for logs, commands and Python callers."""
        values = {"task": self.task_id, **self.data}
        if "state" in values:
            state = values["state"]
            values |= {"state": TaskState.Name(state), "short_state": short_name(state)}
        return self.reason.value.format(**values)
