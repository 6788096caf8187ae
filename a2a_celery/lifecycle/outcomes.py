"""Outcomes of runs, and the status that the client receives for each outcome."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from a2a.types import Message, Part, Role, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import A2A_ERROR_REASONS, InvalidAgentResponseError

from . import states
from .json_values import portable_text
from .own_metadata import COMMAND, ERROR, REFERENCE, own_metadata, retry_metadata, suspension_metadata

AGENT_FAILED = "The agent failed."
"""Text for an exception of the agent. The worker's log has the traceback under the reference of the failure."""

INVALID_RESPONSE = "The agent's response could not be sent."
"""Text for a result that A2A cannot represent. The worker's log has the reason under the reference of the failure."""

OUT_OF_REACH = "The store for large parts was unreachable."
"""Text for a run that could not write a large part to the object store, or read it, for half a minute."""

OUT_OF_TIME = "The agent ran out of time."
"""Text for a run that exceeded an idle limit, or a time limit of the agent or of Celery."""

WORKER_LOST = "The worker was lost."
"""Text for a run whose worker process was killed, exited, or received an order to terminate the run."""

NOT_BEGUN_IN_TIME = "The run did not begin in time."
"""Text for a Celery message that expired in its queue."""

NOT_PUBLISHED = "The run could not be started."
"""Text for a run whose publication fails because of the app. The watcher's log has the exception under the reference of
the failure."""

AGENT_UNKNOWN = "The worker does not have this agent."
"""Text for a Celery message that reached a worker whose app does not have the agent."""

MESSAGE_UNREADABLE = "The worker could not read the Celery message."
"""Text for a Celery message that is not a valid call to a task."""

AGENT_REFUSED = "The agent refused the request."
"""Text for an agent that raised Celery's Reject."""

NO_ANSWER = "The client did not answer in time."
"""Text for a task that waited for its client for longer than `input_timeout`."""

CANCELED_BY_CLIENT = "Cancelled by the client."
"""Text for a CancelTask request from the task's client."""

CANCELED_BY_OPERATOR = "Stopped by an operator."
"""Text for a task that an operator cancelled with a command, or whose Celery task was revoked."""

CANCELED_WITH_RUN = "Cancelled together with the task that started it."
"""Text for a task that is cancelled with the run that started it, or because the task of this run has ended without a
result."""

CANCELED_BY_AGENT = "Cancelled by the agent."
"""Text for an agent that raised `asyncio.CancelledError` or sent CANCELED without a message, although no cancellation
was requested."""

NEEDS_INPUT = "The agent needs your input to continue."
"""Text for a pause in INPUT_REQUIRED without a message."""

NEEDS_AUTHORIZATION = "The agent needs an authorization to continue."
"""Text for a pause in AUTH_REQUIRED without a message."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Outcome of a run whose agent returned without an error."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Outcome of a run whose agent waits for the client.

    Attributes:
        state: INPUT_REQUIRED or AUTH_REQUIRED.
        message: Question of the agent, or None to send the text of `fallback_text`.
    """

    state: TaskState
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Outcome of a run whose agent declined the request.

    Attributes:
        message: Message that tells the client the reason, or None.
    """

    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Outcome of a run that the service refused, or whose agent raised Celery's Reject.

    Attributes:
        text: One of the fixed sentences above.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Outcome of a run whose agent raised an exception, exceeded a limit, or was lost with its worker.

    Attributes:
        text: Sentence for the client.
        reference: Reference of the failure in the worker's log, or None if there is no log entry.
    """

    text: str = AGENT_FAILED
    reference: str | None = None
    parts: tuple[Part, ...] = ()
    """Further parts of the message to the client, after the text."""
    is_resubmittable: bool = False
    """True if the task keeps the data for a further run."""


@dataclass(frozen=True, slots=True)
class Canceled:
    """Outcome of a run that was cancelled.

    Attributes:
        text: One of the fixed sentences above, or None if the store has the text of the cancellation.
        command: Remote-control command with which an operator revoked the Celery task, or None.
    """

    text: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Outcome of a run that is retried.

    Attributes:
        attempt: Number of the next attempt.
        max_attempts: Maximum number of attempts, or None for no limit.
        when: Time of the next attempt in ISO 8601, or "" if the attempt begins immediately.
        cause: Class name of the agent's exception, or "" if the name is unknown or must not be shown to clients.
    """

    attempt: int
    max_attempts: int | None
    when: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Suspended:
    """Outcome of a run that waits for a time or a signal. The next run of the turn continues the work.

    Attributes:
        when: Time in ISO 8601, or "" for no limit.
        signal: Name of the signal, or "" to wait for the time only.
    """

    when: str
    signal: str = ""


@dataclass(frozen=True, slots=True)
class Delegated:
    """Outcome of a run whose agent delegated the work to a Celery canvas. The run ends when the canvas has ended.

    Attributes:
        canvas: Description of the canvas; see ``dispatch/plain_tasks/canvases.py``.
    """

    canvas: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """Outcome of a run that a further message of the client interrupted. The turn of that message follows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Outcome of a run whose task now belongs to another run or process. The run must not write."""


Outcome = (
    Completed | Paused | Rejection | Refused | Failure | Canceled | Retried | Suspended | Delegated | Superseded | Lost
)


OUTCOMES: dict[type[Outcome], str] = {
    Completed: "completed",
    Paused: "paused",
    Canceled: "canceled",
    Failure: "failed",
    Rejection: "rejected",
    Refused: "refused",
    Retried: "retried",
    Suspended: "suspended",
    Delegated: "delegated",
    Superseded: "superseded",
    Lost: "lost",
}
"""Names of outcomes in logs and spans, and for features."""


def final_event(outcome: Outcome, task_id: str, context_id: str) -> TaskStatusUpdateEvent | None:
    """Return the status event that ends a run with `outcome`, or None if the outcome has no status event.

    The caller writes the event only if the agent itself has not sent a final status.
    """

    def status(state: TaskState, message: Message | None = None) -> TaskStatusUpdateEvent:
        return status_event(task_id, context_id, state, message)

    match outcome:
        case Completed():
            return status(states.COMPLETED)
        case Paused(state, message):
            return status(state, message or agent_message(fallback_text(state), task_id, context_id))
        case Rejection(message):
            return status(states.REJECTED, message)
        case Refused(text):
            return status(states.REJECTED, agent_message(text, task_id, context_id))
        case Failure(text, reference, parts):
            message = agent_message(text, task_id, context_id)
            message.parts.extend(parts)
            if reference is not None:
                message.metadata.update(own_metadata({REFERENCE: reference}))
            if text == INVALID_RESPONSE:
                message.metadata.update(own_metadata({ERROR: A2A_ERROR_REASONS[InvalidAgentResponseError]}))
            return status(states.FAILED, message)
        case Canceled(text, command):
            message = agent_message(text, task_id, context_id) if text else None
            if message is not None and command is not None:
                message.metadata.update(own_metadata({COMMAND: command}))
            return status(states.CANCELED, message)
        case Retried(attempt, most, when, cause):
            event = status(states.WORKING)
            event.metadata.update(retry_metadata(attempt, most, when, cause))
            return event
        case Suspended(when, signal):
            event = status(states.WORKING)
            event.metadata.update(suspension_metadata(when, signal))
            return event
        case Delegated() | Superseded() | Lost():
            return None


def as_left(outcome: Outcome, state: TaskState) -> Outcome:
    """Return the outcome of a run whose agent left the task in `state`.

    If an agent sends a final status and then returns without an error, the status determines the outcome. Otherwise,
    return `outcome`.
    """
    if not isinstance(outcome, Completed):
        return outcome
    match state:
        case states.CANCELED:
            return Canceled()
        case states.REJECTED:
            return Rejection()
        case states.FAILED:
            return Failure()
        case states.INPUT_REQUIRED | states.AUTH_REQUIRED:
            return Paused(state)
        case _:
            return outcome


def revoked_by(command: str) -> Canceled:
    """Return the outcome of a run that an operator revoked with the remote-control command `command`."""
    return Canceled(CANCELED_BY_OPERATOR, command)


def fallback_text(state: TaskState) -> str:
    """Return the text for a status in `state` that has no message, or "" if the state needs no text."""
    match state:
        case states.INPUT_REQUIRED:
            return NEEDS_INPUT
        case states.AUTH_REQUIRED:
            return NEEDS_AUTHORIZATION
        case states.CANCELED:
            return CANCELED_BY_AGENT
        case _:
            return ""


def status_event(
    task_id: str, context_id: str, state: TaskState, message: Message | None = None
) -> TaskStatusUpdateEvent:
    """Return a status event for a task. The store sets the time of the status."""
    return TaskStatusUpdateEvent(
        task_id=task_id, context_id=context_id, status=TaskStatus(state=state, message=message)
    )


def agent_message(text: str, task_id: str, context_id: str) -> Message:
    return Message(
        message_id=str(uuid4()),
        role=Role.ROLE_AGENT,
        task_id=task_id,
        context_id=context_id,
        parts=[Part(text=portable_text(text))],
    )
