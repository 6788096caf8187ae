"""Result of a turn with an agent, independent of the form of the agent's responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from a2a.types import Artifact, Message, Part, Task, TaskState, TaskStatus, TaskStatusUpdateEvent

from ..lifecycle import EventKind, LogEntry, apply, is_interrupted, kind_of
from ..lifecycle.fold import joined_texts
from ..lifecycle.outcomes import fallback_text
from ..lifecycle.states import AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, SUBMITTED, WORKING
from .event_parser import parse_event, to_json

StopReason = Literal["end_turn", "interrupt"]

VERSION = 1
"""Format version of `Result.to_dict`."""

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
"""Stop reason of a turn by task state, or None if the turn continues. The turn also continues in unknown states."""


def stop_reason_of(state: int | None) -> StopReason | None:
    """Return the reason why a turn stops in `state`, or None if the turn continues or the state is unknown."""
    return None if state is None else STOP_REASONS.get(state)


def state_name(state: int | None) -> str:
    """Return the name of a task state without its prefix.

    Returns:
        "COMPLETED" for TASK_STATE_COMPLETED, "STATE_42" for a number that this version does not know, or "" for None.
    """
    if state is None:
        return ""
    value = TaskState.DESCRIPTOR.values_by_number.get(state)
    return f"STATE_{state}" if value is None else value.name.removeprefix("TASK_STATE_")


def input_requests(answer: object) -> list[Part]:
    """Return the parts of the agent's question if the task is in INPUT_REQUIRED or AUTH_REQUIRED.

    Args:
        answer: A response in any form that `Result.of` accepts. A single status update is sufficient.

    Returns:
        The parts of the status message, or one part with a default text if the message is empty. An empty list in other
        states.
    """
    event = answer.raw if isinstance(answer, Result) else parse_event(answer)
    if not isinstance(event, Task | TaskStatusUpdateEvent) or not is_interrupted(event.status.state):
        return []
    return _with_content(event.status.message.parts) or [Part(text=fallback_text(event.status.state))]


MAX_REPR_TEXT = 200
"""Maximum number of characters of a text in a `repr`."""


def short_repr(text: str) -> str:
    """Return the `repr` of a text, shortened to `MAX_REPR_TEXT` characters of the text."""
    return repr(text if len(text) <= MAX_REPR_TEXT else f"{text[: MAX_REPR_TEXT - 1]}…")


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Result of a turn that has ended, is interrupted, or is still running (`stop_reason` is None).

    Attributes:
        raw: The task, or the message that the agent sent instead of a task, or None if the agent sent neither.
    """

    raw: Task | Message | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # the messages of the SDK cannot be pickled
        return Result._of_bytes, (isinstance(self.raw, Task), self.raw and self.raw.SerializeToString())

    @classmethod
    def _of_bytes(cls, is_task: bool, raw: bytes | None) -> Result:
        kind = Task if is_task else Message
        return cls(None if raw is None else kind.FromString(raw))

    def __repr__(self) -> str:
        """Return a summary on one line. `raw` has the complete task or message."""
        fields = {"state_name": self.state_name, "task_id": self.task_id, "context_id": self.context_id}
        others = len([part for part in self.parts if not part.HasField("text")])
        summary = [f"{name}={value!r}" for name, value in fields.items() if value]
        summary += [f"text={short_repr(self.text)}"] if self.text else []
        summary += [f"other_parts={others}"] if others else []
        return f"Result({', '.join(summary)})"

    @classmethod
    def of(cls, *answers: object) -> Result:
        """Return the result of one or more responses, in order.

        Args:
            answers: Tasks, messages, events of a stream, the JSON of one of them, results, or None. Missing or
                unreadable fields are empty in the result.
        """
        builder = ResultBuilder()
        for answer in answers:
            builder.add(answer)
        return builder.result()

    @property
    def state(self) -> int | None:
        """`TaskState` number of the task. A server may send a number that this version does not know.

        None for a direct message, for an empty response, and for a task without a status.
        """
        if isinstance(self.raw, Task) and self.raw.HasField("status"):
            return int(self.raw.status.state)
        return None

    @property
    def stop_reason(self) -> StopReason | None:
        """Reason why the turn stopped, or None while the turn continues.

        "end_turn" if the task is terminal or the agent sent a direct message, or "interrupt" if the task waits for its
        client.
        """
        return "end_turn" if isinstance(self.raw, Message) else stop_reason_of(self.state)

    @property
    def state_name(self) -> str:
        """Name of the task's state without its prefix, or "" if there is no state."""
        return state_name(self.state)

    @property
    def task_id(self) -> str:
        """Id of the task, or "" if there is no task."""
        if isinstance(self.raw, Task):
            return self.raw.id
        return self.raw.task_id if self.raw is not None else ""

    @property
    def context_id(self) -> str:
        """Id of the context, or "" if unknown."""
        return self.raw.context_id if self.raw is not None else ""

    @property
    def artifacts(self) -> list[Artifact]:
        """Artifacts received so far. An artifact has the parts of all its chunks."""
        return list(self.raw.artifacts) if isinstance(self.raw, Task) else []

    @property
    def message(self) -> Message | None:
        """Direct message of the agent, or the message of the task's latest status, or None."""
        if isinstance(self.raw, Task):
            return self.raw.status.message if self.raw.status.HasField("message") else None
        return self.raw

    @property
    def message_text(self) -> str:
        """Text of `message`, or "" if there is none. Texts of several parts are joined by newlines."""
        parts = [] if self.message is None else self.message.parts
        return "\n".join(part.text for part in parts if part.text)

    @property
    def parts(self) -> list[Part]:
        """Parts to show to a user.

        If the task is COMPLETED or still running and has artifacts with content, these are the parts of the artifacts.
        Otherwise, they are the parts of `message` or, if `message` is empty, the parts of the artifacts.
        """
        if not isinstance(self.raw, Task):
            return _with_content(self.raw.parts) if self.raw is not None else []
        if self._is_in_artifacts:
            return [part for artifact in self.raw.artifacts for part in _with_content(artifact.parts)]
        return _with_content(self.raw.status.message.parts)

    @property
    def text(self) -> str:
        """Text of `parts`. The text parts of one artifact are joined without a separator, because they may be chunks of
        one text. Other texts are joined by newlines.
        """
        if self._is_in_artifacts:
            texts = ["".join(part.text for part in artifact.parts) for artifact in self.artifacts]
            return "\n".join(text for text in texts if text)
        return "\n".join(part.text for part in self.parts if part.HasField("text"))

    @property
    def _is_in_artifacts(self) -> bool:
        if not isinstance(self.raw, Task) or not any(_with_content(artifact.parts) for artifact in self.raw.artifacts):
            return False
        is_done_or_working = self.state == COMPLETED or self.stop_reason is None
        return is_done_or_working or not _with_content(self.raw.status.message.parts)

    def to_dict(self) -> dict[str, Any]:
        """Serialize the result to a JSON object for `from_dict`.

        The keys `text`, `state_name` and `stop_reason` are for programs that do not use this class.
        """
        return {
            "version": VERSION,
            "stop_reason": self.stop_reason,
            "state": self.state,
            "state_name": self.state_name,
            "task_id": self.task_id,
            "context_id": self.context_id,
            "text": self.text,
            "task": to_json(self.raw) if isinstance(self.raw, Task) else None,
            "message": to_json(self.raw) if isinstance(self.raw, Message) else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Deserialize the output of `to_dict`.

        Raises:
            ValueError: `data` is not a result, or was written by a later version of this package.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION or not {"task", "message"} <= data.keys():
            raise ValueError(f"not a result of version {VERSION} of Result.to_dict")
        return cls.of(_only(Task, data["task"]), _only(Message, data["message"]))


def _with_content(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if part.WhichOneof("content") is not None]


def _joined(task: Task) -> list[Artifact]:
    copy = Task(artifacts=task.artifacts)
    for artifact in copy.artifacts:
        parts = joined_texts(artifact.parts)
        del artifact.parts[:]
        artifact.parts.extend(parts)
    return list(copy.artifacts)


def _only(kind: type[Task] | type[Message], data: Any) -> Task | Message | None:
    if data is None:
        return None
    name = "task" if kind is Task else "message"
    event = parse_event({name: data})
    if not isinstance(data, Mapping) or not isinstance(event, kind):
        raise ValueError(f"the {name} of a result must be an object")
    return event


@dataclass(slots=True)
class ResultBuilder:
    """Builder of a `Result` from responses in the order of their arrival. Adding a chunk takes constant time."""

    _task: Task | None = None
    _message: Message | None = None

    @property
    def stop_reason(self) -> StopReason | None:
        """Stop reason of the result so far; see `Result.stop_reason`."""
        return Result(self._task if self._message is None else self._message).stop_reason

    @property
    def state(self) -> int | None:
        """State of the result so far; see `Result.state`."""
        return Result(self._task if self._message is None else self._message).state

    @property
    def task_id(self) -> str:
        """Id of the task, or "" before a response contains a task."""
        return "" if self._task is None else self._task.id

    def has_status(self, status: TaskStatus) -> bool:
        """Return True if the status of the task equals `status`."""
        return self._task is not None and self._task.status == status

    def includes(self, task: Task) -> bool:
        """Return True if `task` has the same status and artifacts as the result so far. A server may have joined the
        texts of chunks."""
        current = self._task
        if current is None or current.status != task.status:
            return False
        return current.artifacts == task.artifacts or _joined(current) == _joined(task)

    def add(self, answer: object) -> None:
        """Add a response; see `Result.of`. The response is copied, not modified. A message of the client is ignored."""
        event = answer.raw if isinstance(answer, Result) else parse_event(answer)
        if event is None:
            return
        if isinstance(event, Message):
            if kind_of(event) is EventKind.AGENT_MESSAGE:
                self._message = Message()
                self._message.CopyFrom(event)
            return
        if self._task is None and not isinstance(event, Task):
            self._task = Task(id=event.task_id, context_id=event.context_id)
        self._task = apply(self._task, LogEntry(0, 0, event))

    def result(self) -> Result:
        """Return a copy of the result so far."""
        return Result(deepcopy(self._task if self._message is None else self._message))
