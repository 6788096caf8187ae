"""Translation of an agent's events to log entries: missing ids are filled in, states are in a legal order, and all
values can be sent.

Frameworks send events in unusual orders. The table lists the log entries for each case:

=========================================  ========================================================================
event of the agent                         log entries
=========================================  ========================================================================
SUBMITTED, repeated on each turn           none, or WORKING if it has new content
WORKING, repeated without new content      none
a Task                                     its artifacts, then its status with its metadata
a part without content                     none, because a part must have content
a status whose message has no parts        the status without the message, because a message must have parts
an artifact without parts                  the artifact with an empty text, because an artifact must have parts
a pause without content                    the pause with a fixed text
CANCELED without content                   CANCELED "by the agent", or with the text that the store recorded
an artifact before any status              WORKING, then the artifact
an artifact, repeated and not appended     the artifact, which replaces the earlier one
a chunk for an unknown artifact            the beginning of that artifact
a Message as the first event of a task     a direct answer, which completes the task
a Message, later                           COMPLETED with that message
id of another task or context              id of this task or context
a terminal state other than CANCELED       none, because frameworks misreport cancellations
during a cancellation
any event after a terminal state           none, so the first CANCELED and its text are kept (`RunEventQueue`)
no terminal state                          COMPLETED when the agent returns, unless it paused (`RunEventQueue`)
=========================================  ========================================================================
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableSequence, Sequence
from uuid import uuid4

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.struct_pb2 import Value

from ...lifecycle import Event, is_terminal
from ...lifecycle.events import has_content, require_storable, values_in
from ...lifecycle.json_values import report_rounded
from ...lifecycle.outcomes import agent_message, fallback_text
from ...lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING

logger = logging.getLogger(__name__)


class Translator:
    """Translator for the events of one run.

    Attributes:
        state: State of the task after the translated events.
        question: Parts of the status message in INPUT_REQUIRED. Empty in any other state.
        spoken: True if an event has been translated to a log entry.
        agent_error: Exception of the agent that its executor has caught and reported, or None; see `detect_error`.
    """

    def __init__(self, task: Task, *, message_allowed: bool) -> None:
        self.state: TaskState = task.status.state
        self.question: Sequence[Part] = ()
        self.spoken = False
        self.agent_error: Exception | None = None
        self._cancel_asked = self._canceled_by_other = False
        self._task_id = task.id
        self._context_id = task.context_id
        # by id; True while the artifact is open, that is, this run began it and has not sent its last chunk
        self._artifacts = dict.fromkeys((artifact.artifact_id for artifact in task.artifacts), False)
        self._message_allowed = message_allowed

    def ask_to_cancel(self) -> None:
        """Allow only CANCELED as the terminal state, because the task is being cancelled."""
        self._cancel_asked = self._canceled_by_other = True

    def close(self) -> None:
        """Allow every terminal state again, because the agent has returned."""
        self._cancel_asked = False

    @property
    def open_artifacts(self) -> frozenset[str]:
        """Ids of the artifacts that this run began but did not finish."""
        return frozenset(artifact_id for artifact_id, is_open in self._artifacts.items() if is_open)

    def detect_error(self, event: Event) -> bool:
        """Return True if `event` reports FAILED with the text of the exception that the caller handles, or without any
        text. The exception becomes the `agent_error`.

        The executors of some frameworks send clients the text of any exception, which may contain a secret.
        """
        self.agent_error = _reported_error(event)
        return self.agent_error is not None

    def translate(self, event: Event) -> list[Event]:
        """Return the log entries for `event`, which may be none. The event is copied.

        Raises:
            InvalidAgentResponseError: `event` is not an A2A event, or contains a value without a JSON form, such as
                NaN or infinity, or a value that is nested too deeply.
        """
        if not isinstance(event, Event):
            raise InvalidAgentResponseError(f"not an A2A event: {type(event).__name__}")
        _require_sendable(event)  # check first, because a refused event must have no effect
        match event:
            case Message():
                events = self._message(event)
            case TaskStatusUpdateEvent():
                events = self._status(event)
            case TaskArtifactUpdateEvent():
                events = self._artifact(event)
            case Task():
                events = self._task(event)
        self.spoken = self.spoken or bool(events)
        return events

    def status(self, state: TaskState, message: Message | None = None) -> list[Event]:
        """Return the log entries for a status that this package sends."""
        return self.translate(TaskStatusUpdateEvent(status=TaskStatus(state=state, message=message)))

    def _message(self, event: Message) -> list[Event]:
        message = Message()
        message.CopyFrom(event)
        message.role = Role.ROLE_AGENT
        message.context_id = self._context_id
        message.message_id = message.message_id or str(uuid4())
        _remove_empty_parts(message.parts)
        if self._message_allowed and not self.spoken and not self._cancel_asked and message.parts:
            message.task_id = ""  # the client receives the answer without a task
            self.state = COMPLETED
            return [message]
        message.task_id = self._task_id
        return self.status(COMPLETED, message)

    def _status(self, event: TaskStatusUpdateEvent) -> list[Event]:
        state = event.status.state
        if self._cancel_asked and is_terminal(state) and state != CANCELED:
            return []
        new = any(map(_is_filled, event.status.message.parts)) or bool(event.metadata.fields)
        if state in (SUBMITTED, TaskState.TASK_STATE_UNSPECIFIED):
            if not new:
                return []
            state = WORKING
        if state == WORKING == self.state and not new:
            return []
        status = TaskStatusUpdateEvent()
        status.CopyFrom(event)
        self._own(status)
        status.status.state = state
        _remove_empty_parts(status.status.message.parts)
        if not has_content(status.status.message.parts) and (text := self._fallback_text(state)):
            status.status.message.CopyFrom(agent_message(text, self._task_id, self._context_id))
        if not status.status.message.parts:
            status.status.ClearField("message")
        else:
            message = status.status.message
            message.role, message.task_id, message.context_id = Role.ROLE_AGENT, self._task_id, self._context_id
            message.message_id = message.message_id or str(uuid4())
        self.state = state
        self.question = status.status.message.parts if state == INPUT_REQUIRED else ()
        return [status]

    def _fallback_text(self, state: TaskState) -> str:
        return "" if state == CANCELED and self._canceled_by_other else fallback_text(state)

    def _artifact(self, event: TaskArtifactUpdateEvent) -> list[Event]:
        status_events = self.status(WORKING) if self.state == SUBMITTED else []
        chunk = TaskArtifactUpdateEvent()
        chunk.CopyFrom(event)
        self._own(chunk)
        _remove_empty_parts(chunk.artifact.parts)
        if not chunk.artifact.parts:
            chunk.artifact.parts.add(text="")
        artifact_id = chunk.artifact.artifact_id = chunk.artifact.artifact_id or str(uuid4())
        chunk.append = chunk.append and artifact_id in self._artifacts
        self._artifacts[artifact_id] = not chunk.last_chunk and (not chunk.append or self._artifacts[artifact_id])
        return [*status_events, chunk]

    def _task(self, task: Task) -> list[Event]:
        events: list[Event] = []
        for artifact in task.artifacts:
            events += self._artifact(TaskArtifactUpdateEvent(artifact=artifact))
        events += self._status(TaskStatusUpdateEvent(status=task.status, metadata=task.metadata))
        return events

    def _own(self, event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> None:
        if event.task_id not in ("", self._task_id) or event.context_id not in ("", self._context_id):
            logger.warning("task %s: its agent sent an event for task %r", self._task_id, event.task_id)
        event.task_id, event.context_id = self._task_id, self._context_id


def _reported_error(event: Event) -> Exception | None:
    error = sys.exception()
    if not isinstance(error, Exception) or not isinstance(event, Task | TaskStatusUpdateEvent):
        return None
    if event.status.state != FAILED:
        return None
    text = "".join(part.text for part in event.status.message.parts)
    error_texts = {str(error), repr(str(error))[1:-1]} - {""}
    return error if not text.strip() or any(error_text in text for error_text in error_texts) else None


def _remove_empty_parts(parts: MutableSequence[Part]) -> None:
    for index in reversed(range(len(parts))):
        if not _is_filled(parts[index]):
            del parts[index]


def _is_filled(part: Part) -> bool:
    return part.WhichOneof("content") is not None


def _require_sendable(event: Event) -> None:
    """Check the structured values of `event`.

    Raises:
        InvalidAgentResponseError: JSON cannot represent a value, or a value is nested too deeply.
    """
    match event:
        case TaskArtifactUpdateEvent():
            values = _values_of(event, event.artifact)
            suspect = bool(values)
        case Message():
            values, suspect = _values_of(event), True
        case Task():
            values, suspect = _values_of(event, event.status.message, *event.artifacts), True
        case _:
            values = _values_of(event, event.status.message)
            suspect = event.status.HasField("message") or bool(values)
    may_be_rounded = require_storable(values)
    if suspect:
        try:
            fields = MessageToDict(event)
        except (SerializeToJsonError, ValueError) as e:
            raise InvalidAgentResponseError("the event has a value without a form in JSON") from e
        if may_be_rounded:
            report_rounded(fields)


def _values_of(*holders: Event | Artifact) -> list[Value]:
    """Return the values in the metadata of `holders` and in their parts."""
    parts = [part for holder in holders if isinstance(holder, Message | Artifact) for part in holder.parts]
    return values_in(parts, *(holder.metadata for holder in holders))
