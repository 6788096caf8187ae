"""Outcomes: how a run ended, as values; and the one `match` that says what each means to the client."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from a2a.types import Message, Part, Role, TaskState, TaskStatus, TaskStatusUpdateEvent

from . import states

AGENT_FAILED = "The agent failed."
"""All a client hears of an exception; what happened is in the worker's log, under the reference id."""

OUT_OF_REACH = "The store for large parts was out of reach."
"""A part that is too large for Redis could not be written, or read, for half a minute."""

OUT_OF_TIME = "The agent ran out of time."
"""A time limit of the agent or of Celery, soft or hard, or an idle limit was reached."""

WORKER_LOST = "The worker was lost."
"""The process that ran the agent was killed, exited or was told to terminate it."""

NOT_BEGUN_IN_TIME = "It was not begun in time."
"""The Celery message expired in its queue."""

WITHDRAWN = "It was withdrawn before it began."
"""Somebody revoked the Celery task while it waited: an operator, say, not a client, whose cancel is CANCELED."""

AGENT_UNKNOWN = "No such agent works here."
"""The Celery message came to a worker whose app has no such agent."""

AGENT_REFUSED = "The agent refused it."
"""The agent raised Celery's Reject."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The agent returned."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The agent waits for its client; `state` is INPUT_REQUIRED or AUTH_REQUIRED, `message` what it asks, or None."""

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
    """The agent was stopped because someone asked for it."""


@dataclass(frozen=True, slots=True)
class Retried:
    """Celery runs it again: as the `attempt`-th of `max_attempts` (None: of as many as it takes), at `when` (ISO 8601,
    "" for at once). The message that does it is on its way."""

    attempt: int
    max_attempts: int | None
    when: str


@dataclass(frozen=True, slots=True)
class HandedOn:
    """A canvas that the agent began will end it; `canvas` says which, see ``execution.canvas``."""

    canvas: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The run belongs to someone else by now: nothing may be written."""


Outcome = Completed | Paused | Rejected | Refused | Failed | Canceled | Retried | HandedOn | Lost


def final_event(outcome: Outcome, task_id: str, context_id: str) -> TaskStatusUpdateEvent | None:
    """The status a run that ended with `outcome` leaves behind, if its agent wrote none; None if it leaves none."""

    def status(state: TaskState, message: Message | None = None) -> TaskStatusUpdateEvent:
        return status_event(task_id, context_id, state, message)

    match outcome:
        case Completed():
            return status(states.COMPLETED)
        case Paused(state, message):
            return status(state, message)
        case Rejected(message):
            return status(states.REJECTED, message)
        case Refused(text):
            return status(states.REJECTED, agent_message(text, task_id, context_id))
        case Failed(text, reference, parts):
            message = agent_message(text, task_id, context_id)
            message.parts.extend(parts)
            if reference is not None:
                message.metadata.update({"reference": reference})
            return status(states.FAILED, message)
        case Canceled():
            return status(states.CANCELED)
        case Retried(attempt, most, when):
            event = status(states.WORKING)
            known = {"attempt": attempt, "maxAttempts": most, "nextAttemptAt": when}
            event.metadata.update({name: value for name, value in known.items() if value})
            return event
        case HandedOn() | Lost():
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
