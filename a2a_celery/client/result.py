"""What a turn with an agent came to: one value for every answer that a peer may give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from a2a.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatusUpdateEvent,
)

from ..lifecycle import EventKind, LogEntry, apply, is_interrupted, kind_of
from ..lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
)
from .answers import event_of, json_of

StopReason = Literal["end_turn", "interrupt"]

VERSION = 1
"""Of what `Result.to_dict` gives."""

STOP_REASONS: Mapping[int, StopReason | None] = {
    TaskState.TASK_STATE_UNSPECIFIED: None,
    SUBMITTED: None,
    WORKING: None,
    INPUT_REQUIRED: "interrupt",
    AUTH_REQUIRED: "interrupt",
    COMPLETED: "end_turn",
    FAILED: "end_turn",
    CANCELED: "end_turn",
    REJECTED: "end_turn",
}
"""What each state means for whoever waits; None: the task goes on, as it does in a state that is not known here."""


def stop_reason_of(state: int | None) -> StopReason | None:
    """Why a turn is over in `state`; None if it is not, also for states of later protocol versions."""
    return None if state is None else STOP_REASONS.get(state)


def state_name(state: int | None) -> str:
    """ "COMPLETED" for TASK_STATE_COMPLETED; "STATE_42" for one that this version does not know; "" for None."""
    if state is None:
        return ""
    known = TaskState.DESCRIPTOR.values_by_number.get(state)
    return f"STATE_{state}" if known is None else known.name.removeprefix("TASK_STATE_")


def input_requests(answer: object) -> list[Part]:
    """What an agent asks for: the parts of the status message in INPUT_REQUIRED and AUTH_REQUIRED, else none.

    `answer` is anything that `Result.of` takes; a status update counts by itself.
    """
    event = answer.raw if isinstance(answer, Result) else event_of(answer)
    if not isinstance(event, Task | TaskStatusUpdateEvent) or not is_interrupted(event.status.state):
        return []
    return _with_content(event.status.message.parts)


@dataclass(frozen=True, slots=True)
class Result:
    """A turn as it stands: ended, paused, or under way (then `stop_reason` is None).

    Attributes:
        raw: the Task, or the Message that the agent answered with instead of a task; None if it answered with nothing.
    """

    raw: Task | Message | None = None

    @classmethod
    def of(cls, *answers: object) -> Result:
        """The result of `answers`, in order: tasks, messages, events of a stream, their JSON, or None.

        Whatever they have not, or have in a form that can't be read, is empty in the result; nothing is raised.
        """
        gathered = Gathered()
        for answer in answers:
            gathered.add(answer)
        return gathered.result()

    @property
    def state(self) -> int | None:
        """The task's state as its number, which may be one that this version has no `TaskState` for.

        None for a direct message, an answer without a task, and a task without a status.
        """
        if isinstance(self.raw, Task) and self.raw.HasField("status"):
            return int(self.raw.status.state)
        return None

    @property
    def stop_reason(self) -> StopReason | None:
        """ "end_turn": the agent is done (a direct message is the end, too); "interrupt": it waits for its client."""
        return "end_turn" if isinstance(self.raw, Message) else stop_reason_of(self.state)

    @property
    def state_name(self) -> str:
        """The state without its prefix, see `state_name`; "" without a state."""
        return state_name(self.state)

    @property
    def task_id(self) -> str:
        """The task's id; "" without a task."""
        if isinstance(self.raw, Task):
            return self.raw.id
        return self.raw.task_id if self.raw is not None else ""

    @property
    def context_id(self) -> str:
        """The context's id; "" if none is known."""
        return self.raw.context_id if self.raw is not None else ""

    @property
    def artifacts(self) -> list[Artifact]:
        """All artifacts so far, each whole."""
        return list(self.raw.artifacts) if isinstance(self.raw, Task) else []

    @property
    def message(self) -> Message | None:
        """The agent's direct message, else what its last status says: a question, a reason, a last word."""
        if isinstance(self.raw, Task):
            return self.raw.status.message if self.raw.status.HasField("message") else None
        return self.raw

    @property
    def parts(self) -> list[Part]:
        """What there is to read.

        The parts of the artifacts if the agent completed its task with any, or still works on them; otherwise those
        of `message`: the question, the reason, the answer.
        """
        if not isinstance(self.raw, Task):
            return _with_content(self.raw.parts) if self.raw is not None else []
        if self._is_in_artifacts:
            return [part for artifact in self.raw.artifacts for part in _with_content(artifact.parts)]
        return _with_content(self.raw.status.message.parts)

    @property
    def text(self) -> str:
        """The text in `parts`: of one artifact without a seam, as it may come in chunks; else each in its line."""
        if self._is_in_artifacts:
            texts = ["".join(part.text for part in artifact.parts) for artifact in self.artifacts]
            return "\n".join(text for text in texts if text)
        return "\n".join(part.text for part in self.parts if part.HasField("text"))

    @property
    def _is_in_artifacts(self) -> bool:
        done_or_at_it = self.state == COMPLETED or self.stop_reason is None
        return done_or_at_it and any(_with_content(artifact.parts) for artifact in self.artifacts)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON: what `from_dict` reads, and for readers without this class what they look for first."""
        return {
            "version": VERSION,
            "stop_reason": self.stop_reason,
            "state": self.state,
            "state_name": self.state_name,
            "task_id": self.task_id,
            "context_id": self.context_id,
            "text": self.text,
            "task": json_of(self.raw) if isinstance(self.raw, Task) else None,
            "message": json_of(self.raw) if isinstance(self.raw, Message) else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """The result that `to_dict` wrote.

        Raises:
            ValueError: `data` is something else, or was written by a later version.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION or not {"task", "message"} <= data.keys():
            raise ValueError(f"not a result as version {VERSION} of Result.to_dict writes it")
        return cls.of(_only(Task, data["task"]), _only(Message, data["message"]))


def _with_content(parts: Iterable[Part]) -> list[Part]:
    """`parts` without those that hold nothing at all."""
    return [part for part in parts if part.WhichOneof("content") is not None]


def _only(kind: type[Task] | type[Message], data: Any) -> Task | Message | None:
    if data is None:
        return None
    name = "task" if kind is Task else "message"
    found = event_of({name: data})
    if not isinstance(data, Mapping) or not isinstance(found, kind):
        raise ValueError(f"the {name} of a result is an object")
    return found


@dataclass(slots=True)
class Gathered:
    """Answers as they come in, put together; what one chunk costs does not grow with the number of chunks before."""

    _task: Task | None = None
    _message: Message | None = None

    @property
    def stop_reason(self) -> StopReason | None:
        """As `Result.stop_reason` would say it."""
        return Result(self._task if self._message is None else self._message).stop_reason

    @property
    def task_id(self) -> str:
        """The task's id; "" as long as there is none."""
        return "" if self._task is None else self._task.id

    def knows(self, task: Task) -> bool:
        """Whether `task` says nothing of its status and its artifacts that has not come in before."""
        known = self._task
        return known is not None and known.status == task.status and known.artifacts == task.artifacts

    def add(self, answer: object) -> None:
        """Takes in one more answer, see `Result.of`; its own objects are not changed afterwards."""
        event = answer.raw if isinstance(answer, Result) else event_of(answer)
        if event is None:
            return
        if isinstance(event, Message):
            if kind_of(event) is EventKind.ANSWER:
                self._message = Message()
                self._message.CopyFrom(event)
            return
        if self._task is None and not isinstance(event, Task):
            self._task = Task(id=event.task_id, context_id=event.context_id)
        self._task = apply(self._task, LogEntry(0, 0, event))

    def result(self) -> Result:
        """What has come in so far."""
        return Result(deepcopy(self._task if self._message is None else self._message))
