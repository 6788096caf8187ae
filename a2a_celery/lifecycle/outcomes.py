"""Outcomes: how a run ended, as values; and the one `match` that says what each means to the client."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from a2a.types import Message, Part, Role, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import A2A_ERROR_REASONS, InvalidAgentResponseError

from . import states
from .own_metadata import retry_metadata

AGENT_FAILED = "The agent failed."
"""All a client hears of an exception; what happened is in the worker's log, under the reference id."""

INVALID_ANSWER = "The agent's answer could not be sent."
"""The agent returned or sent what A2A cannot carry. The reason is in the worker's log, under the reference id."""

OUT_OF_REACH = "The store for large parts was out of reach."
"""A part that is too large for Redis could not be written, or read, for half a minute."""

OUT_OF_TIME = "The agent ran out of time."
"""A time limit of the agent or of Celery, soft or hard, or an idle limit was reached."""

WORKER_LOST = "The worker was lost."
"""The process that ran the agent was killed, exited or was told to terminate it."""

NOT_BEGUN_IN_TIME = "It was not begun in time."
"""The Celery message expired in its queue."""

AGENT_UNKNOWN = "No such agent works here."
"""The Celery message came to a worker whose app has no such agent."""

MESSAGE_UNREADABLE = "No worker could read it."
"""A worker rejected the Celery message: it is no valid call of a task."""

AGENT_REFUSED = "The agent refused it."
"""The agent raised Celery's Reject."""

CANCELED_BY_CLIENT = "Cancelled by the client."
"""The task's client sent CancelTask."""

CANCELED_BY_OPERATOR = "Stopped by an operator."
"""An operator cancelled the task by a command, or revoked its Celery task, from a program or from Flower."""

CANCELED_BY_PARENT = "Cancelled together with the task that started it."
"""The client is an agent whose own task was cancelled."""

CANCELED_BY_AGENT = "Cancelled by the agent."
"""The agent raised `asyncio.CancelledError` or sent CANCELED without a message, and nobody had asked for it."""

NEEDS_INPUT = "The agent needs your input to go on."
"""An agent paused in INPUT_REQUIRED without a message."""

NEEDS_AUTHORIZATION = "The agent needs an authorization to go on."
"""An agent paused in AUTH_REQUIRED without a message."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The agent returned."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The agent waits for its client.

    `state` is INPUT_REQUIRED or AUTH_REQUIRED. `message` is the agent's question; None: a fixed sentence, see
    `fallback_text`.
    """

    state: TaskState
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The agent won't do it; `message` says why to the client, None says nothing."""

    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It was not done, for a reason that is ours and not the agent's; `text` is one of the fixed sentences above."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent raised, or was stopped by a limit or with its worker.

    `text` is for the client; `reference` finds the traceback in the worker's log, if any.
    """

    text: str = AGENT_FAILED
    reference: str | None = None
    parts: tuple[Part, ...] = ()
    """More for the client, behind the text."""


@dataclass(frozen=True, slots=True)
class Canceled:
    """The agent was stopped because someone asked for it.

    `text` is one of the fixed sentences above; None: the store's record of the cancel has it. `command` is the
    remote-control command by which an operator revoked the Celery task; None: there was none.
    """

    text: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """The run is retried: as the `attempt`-th of `max_attempts` (None: without a limit), at `when` (ISO 8601, "" for at
    once), because of an exception of the class that `cause` names ("" where that is not shown)."""

    attempt: int
    max_attempts: int | None
    when: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Delegated:
    """A canvas that the agent began will end it; `canvas` says which, see ``execution.canvas``."""

    canvas: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The run belongs to someone else by now: nothing may be written."""


Outcome = Completed | Paused | Rejected | Refused | Failed | Canceled | Retried | Delegated | Lost


def final_event(outcome: Outcome, task_id: str, context_id: str) -> TaskStatusUpdateEvent | None:
    """The status a run that ended with `outcome` leaves behind, if its agent wrote none; None if it leaves none."""

    def status(state: TaskState, message: Message | None = None) -> TaskStatusUpdateEvent:
        return status_event(task_id, context_id, state, message)

    match outcome:
        case Completed():
            return status(states.COMPLETED)
        case Paused(state, message):
            return status(state, message or agent_message(fallback_text(state), task_id, context_id))
        case Rejected(message):
            return status(states.REJECTED, message)
        case Refused(text):
            return status(states.REJECTED, agent_message(text, task_id, context_id))
        case Failed(text, reference, parts):
            message = agent_message(text, task_id, context_id)
            message.parts.extend(parts)
            if reference is not None:
                message.metadata.update({"reference": reference})
            if text == INVALID_ANSWER:
                message.metadata.update({"error": A2A_ERROR_REASONS[InvalidAgentResponseError]})
            return status(states.FAILED, message)
        case Canceled(text, command):
            message = agent_message(text, task_id, context_id) if text else None
            if message is not None and command is not None:
                message.metadata.update({"command": command})
            return status(states.CANCELED, message)
        case Retried(attempt, most, when, cause):
            event = status(states.WORKING)
            event.metadata.update(retry_metadata(attempt, most, when, cause))
            return event
        case Delegated() | Lost():
            return None


def as_left(outcome: Outcome, state: TaskState) -> Outcome:
    """`outcome`, or of an agent that just returned, what it had said itself: its task is in `state`."""
    if not isinstance(outcome, Completed):
        return outcome
    match state:
        case states.CANCELED:
            return Canceled()
        case states.REJECTED:
            return Rejected()
        case states.FAILED:
            return Failed()
        case states.INPUT_REQUIRED | states.AUTH_REQUIRED:
            return Paused(state)
        case _:
            return outcome


def revoked_by(command: str) -> Canceled:
    """Return the outcome of a run that an operator revoked by the remote-control command `command`."""
    return Canceled(CANCELED_BY_OPERATOR, command)


def fallback_text(state: TaskState) -> str:
    """Return the text of a status whose agent said nothing; "" for a state that needs no text."""
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
    """A new status of a task; the store says its time."""
    return TaskStatusUpdateEvent(
        task_id=task_id, context_id=context_id, status=TaskStatus(state=state, message=message)
    )


def agent_message(text: str, task_id: str, context_id: str) -> Message:
    """A message from the agent that says `text`."""
    return Message(
        message_id=str(uuid4()),
        role=Role.ROLE_AGENT,
        task_id=task_id,
        context_id=context_id,
        parts=[Part(text=text)],
    )
