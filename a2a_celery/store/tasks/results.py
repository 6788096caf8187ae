"""Results of the commands on tasks, with one class for each result, and the parsers of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from a2a.types import Message, Task, TaskState

from ...lifecycle import EventId
from ..codec import direct_answer, snapshot_is_resolved, state_of, task_from_snapshot


@dataclass(frozen=True, slots=True)
class Created:
    """Created task. The caller publishes the run unless the run is blocked or published.

    Attributes:
        task: Snapshot of the task at the event `newest`.
        newest: Id of the newest event.
        is_blocked: True if another run of the context must end first.
        is_published: True if the broker has the message of the run.
    """

    task: Task
    newest: EventId
    is_blocked: bool = False
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """Repeated message. Nothing was written.

    Attributes:
        task_id: Id of the task that has accepted the message.
        version: Version of the log after which the turn of the message begins.
        preceding_turns: Number of other turns that end before the turn of the message begins.
    """

    task_id: str
    version: int
    preceding_turns: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Conflict with another message that has the same id. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooDeep:
    """Refusal of a task that would have too many ancestors. Nothing was written."""


@dataclass(frozen=True, slots=True)
class WaitsForItself:
    """Refusal of a task whose run would wait, in the queue of its context, for a task that waits for the new task.
    Nothing was written."""


@dataclass(frozen=True, slots=True)
class TaskIdConflict:
    """Refusal of a task whose id belongs to a task of another agent, tenant or owner. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TickSkipped:
    """Skipped tick, which creates no task, because an earlier task of the schedule is SUBMITTED or WORKING."""


@dataclass(frozen=True, slots=True)
class TickRepeated:
    """Repeated tick. Nothing was written.

    Attributes:
        task_id: Id of the task that the tick created, or "" if the tick was skipped.
    """

    task_id: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Result for a task or config that does not exist in the scope."""


@dataclass(frozen=True, slots=True)
class WrongContext:
    """Refusal of a message whose context is not `context_id`, the context of the task. Nothing was written."""

    context_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Refusal because the task has ended in `state`. Nothing was written."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """Open question that the message answers. Nothing was written.

    The caller validates the message, and repeats the call with `run` as `answered_run`.

    Attributes:
        run: Run that asked the question.
        schema: JSON Schema of the answer.
    """

    run: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class Full:
    """Refusal because the task has the maximum number of waiting messages or stored signals. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Refusal because the task would exceed its maximum size. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooManyConfigs:
    """Refusal because the task has the maximum number of push-notification configs. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Limited:
    """Refusal because a limit is reached. Nothing was written.

    Attributes:
        limit: Name of the limit: a field of `TaskLimits`, "children" or "webhooks".
        maximum: Value of the limit, or 0 for the limit "memory".
        retry_in: Estimated seconds until the store can accept the message, or 0.0 if unknown.
    """

    limit: str
    maximum: int
    retry_in: float

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Limited:
        """Parse the reply of ``check_limits`` in ``scripts/lib``."""
        _, limit, maximum, wait_us = reply
        return cls(limit.decode(), int(maximum), int(wait_us) / 1e6)


NotCreated = Known | Conflict | Limited | TooDeep | WaitsForItself | TaskIdConflict | TickSkipped | TickRepeated
"""Result of `create_task` if the call created no task."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Message that has begun a run. The caller publishes the run unless the run is blocked or published.

    Attributes:
        run: Number of the run.
        task: Snapshot of the task at the event `newest`.
        newest: Id of the newest event.
        is_blocked: True if another run of the context must end first.
        is_resolved: False if `task` has unresolved blob references. A client must not receive such a task.
        is_published: True if the broker has the message of the run.
    """

    run: int
    task: Task
    newest: EventId
    is_blocked: bool = False
    is_resolved: bool = True
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """Message that waits until the open run ends.

    Attributes:
        place: Position among the waiting messages, from 1.
        task: Snapshot of the task at the event `newest`, without the message.
        newest: Id of the newest event.
        is_resolved: False if `task` has unresolved blob references. A client must not receive such a task.
    """

    place: int
    task: Task
    newest: EventId
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class DeliveredToRun:
    """Message that the open run can read, or that interrupts the open run.

    Attributes:
        task: Snapshot of the task at the event `newest`, with the message in its history.
        newest: Id of the newest event.
        is_resolved: False if `task` has unresolved blob references. A client must not receive such a task.
    """

    task: Task
    newest: EventId
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class Working:
    """Refusal because a run of the task is open and the agent accepts no messages until the run ends. Nothing was
    written."""


Answered = (
    Missing
    | WrongContext
    | Ended
    | Full
    | TooLarge
    | TooManyConfigs
    | Known
    | Conflict
    | Limited
    | Begun
    | Waiting
    | DeliveredToRun
    | Working
)
"""Result of `continue_task` for a message that needs no validation or was validated."""

Continued = Answered | OpenQuestion
"""Result of `continue_task`."""


@dataclass(frozen=True, slots=True)
class FinalTask:
    """Task in a final state.

    Attributes:
        task: Snapshot of the task.
        version: Version of the snapshot.
        answer: Agent's message if it is the agent's only event, or None.
    """

    task: Task
    version: int
    answer: Message | None


@dataclass(frozen=True, slots=True)
class CanceledNow:
    """Task that this call has cancelled.

    Attributes:
        run: Queued run whose Celery task the caller can revoke, or None.
        version: Version of the log after the cancellation.
        canvas: Canvas whose Celery tasks the caller can revoke, or b"".
    """

    run: int | None
    version: int
    canvas: bytes = b""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Cancellation that the worker of the run must carry out. The log was at `version`."""

    version: int

    def __str__(self) -> str:
        """Return a sentence for logs."""
        return "its worker was asked to cancel it"


@dataclass(frozen=True, slots=True)
class Page:
    """Page of tasks.

    Attributes:
        total: Number of matching tasks on all pages.
        more: True if another page follows.
        border_us: Archive cutoff in µs since 1970, or None if no task was archived; see `Keys.installation`. The caller
            reads the archive up to the cutoff.
    """

    tasks: list[Task]
    total: int
    more: bool
    border_us: int | None = None


def parse_continuation(reply: Sequence[Any]) -> Continued:
    """Parse the reply of ``continue_task``."""
    match reply[0]:
        case b"missing":
            return Missing()
        case b"context":
            return WrongContext(reply[1].decode())
        case b"ended":
            return Ended(state_of(reply[1]))
        case b"question":
            return OpenQuestion(int(reply[1]), reply[2])
        case b"full":
            return Full()
        case b"working":
            return Working()
        case b"large":
            return TooLarge()
        case b"configs":
            return TooManyConfigs()
        case b"known":
            return _parse_known(reply)
        case b"conflict":
            return Conflict()
        case b"limited":
            return Limited.parse(reply)
        case b"begun":
            task, newest = task_from_snapshot(reply[2])
            is_resolved, is_published = snapshot_is_resolved(reply[2]), reply[4] == b"1"
            return Begun(int(reply[1]), task, newest, reply[3] == b"1", is_resolved, is_published)
        case b"delivered":
            return DeliveredToRun(*task_from_snapshot(reply[1]), snapshot_is_resolved(reply[1]))
        case _:
            return Waiting(int(reply[1]), *task_from_snapshot(reply[2]), snapshot_is_resolved(reply[2]))


def not_created(reply: Sequence[bytes]) -> NotCreated:
    """Parse a reply of ``create_task`` that did not create a task."""
    match reply[0]:
        case b"known":
            return _parse_known(reply)
        case b"limited":
            return Limited.parse(reply)
        case b"deep":
            return TooDeep()
        case b"waits_for_itself":
            return WaitsForItself()
        case b"id_conflict":
            return TaskIdConflict()
        case b"skipped":
            return TickSkipped()
        case b"repeated":
            return TickRepeated(unquote(reply[1].decode()))
        case _:
            return Conflict()


def final_task(reply: list[Any] | None) -> FinalTask | None:
    """Parse the reply of ``read_task`` to a call that reads final states only."""
    if not reply:
        return None
    task, newest = task_from_snapshot(reply)
    return FinalTask(task, newest.version, direct_answer(reply))


def _parse_known(reply: Sequence[bytes]) -> Known:
    _, task_id, version, preceding_turns = reply
    return Known(task_id.decode(), int(version), int(preceding_turns))
