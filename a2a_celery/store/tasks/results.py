"""Results of the commands on tasks, with one class for each outcome, and the parsers of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import Message, Task, TaskState

from ...lifecycle import EventId
from ..codec import direct_answer, snapshot_is_resolved, state_of, task_from_snapshot


@dataclass(frozen=True, slots=True)
class Created:
    """The task was created. `task` is its snapshot at the event `newest`.

    The caller publishes the run unless the run is blocked or published.
    """

    task: Task
    newest: EventId
    is_blocked: bool = False
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The message was already accepted, by the task `task_id`. Nothing was written.

    The turn of the message begins after `version` of the log and after `preceding_turns` other turns.
    """

    task_id: str
    version: int
    preceding_turns: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another message has the same id. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooDeep:
    """The task would have too many ancestors. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The task does not exist in the scope."""


@dataclass(frozen=True, slots=True)
class WrongContext:
    """The message names another context than `context_id`, the context of the task. Nothing was written."""

    context_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The task has ended in `state`. Nothing was written."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """The message answers the question of run `run`, whose answers must match the JSON Schema `schema`.

    Nothing was written. The caller validates the message, and repeats the call with `run`.
    """

    run: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class Full:
    """Too many messages wait for the end of the run. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The task would exceed its maximum size. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TooManyConfigs:
    """The task has the maximum number of push-notification configs. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit is reached. Nothing was written.

    Attributes:
        limit: name of the limit: a field of `TaskLimits`, "children" or "webhooks".
        maximum: value of the limit.
        retry_in: estimated seconds until the message can be accepted, or 0.0 if unknown.
    """

    limit: str
    maximum: int
    retry_in: float

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Limited:
        """Parse the reply of ``check_limits`` in ``scripts/lib``."""
        _, limit, maximum, us = reply
        return cls(limit.decode(), int(maximum), int(us) / 1e6)


@dataclass(frozen=True, slots=True)
class Begun:
    """The message began run `run`. `task` is the snapshot of the task at the event `newest`.

    The caller publishes the run unless the run is blocked or published. If `is_resolved` is False, `task` has
    unresolved blob references, and a client must not receive it.
    """

    run: int
    task: Task
    newest: EventId
    is_blocked: bool = False
    is_resolved: bool = True
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The message waits at position `place`, counted from 1.

    `task` is the snapshot of the task without the message, at the event `newest`. If `is_resolved` is False, `task` has
    unresolved blob references, and a client must not receive it.
    """

    place: int
    task: Task
    newest: EventId
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class Delivered:
    """The message is in the history, at the event `newest`, and the open run can read it or is interrupted by it.

    A client must not receive a task that is not `is_resolved`, because it has blob references.
    """

    task: Task
    newest: EventId
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class Working:
    """A run of the task is open, and its agent accepts no message until the run ends. Nothing was written."""


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
    | Delivered
    | Working
)
"""Result of `continue_task` for a message that needs no validation or was validated."""

Continued = Answered | OpenQuestion
"""Result of `continue_task`."""


@dataclass(frozen=True, slots=True)
class FinalTask:
    """Task in a final state, at `version`. `answer` is the agent's message if it is the only event of the agent, or
    None."""

    task: Task
    version: int
    answer: Message | None


@dataclass(frozen=True, slots=True)
class CanceledNow:
    """The task was canceled.

    Attributes:
        run: queued run whose Celery task the caller can revoke, or None.
        version: version of the log after the cancel.
        canvas: canvas whose Celery tasks the caller can revoke, or b"".
    """

    run: int | None
    version: int
    canvas: bytes = b""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The worker was asked to cancel the run. The log was at `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """Page of tasks.

    Attributes:
        total: number of matching tasks in all pages.
        more: True if another page follows.
        border_us: time of the newest archived status in µs, or None if no task is archived. The archive is read up to
            this time.
    """

    tasks: list[Task]
    total: int
    more: bool
    border_us: int | None = None


def continued(reply: Sequence[Any]) -> Continued:
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
            return _known(reply)
        case b"conflict":
            return Conflict()
        case b"limited":
            return Limited.parse(reply)
        case b"begun":
            task, newest = task_from_snapshot(reply[2])
            resolved, published = snapshot_is_resolved(reply[2]), reply[4] == b"1"
            return Begun(int(reply[1]), task, newest, reply[3] == b"1", resolved, published)
        case b"delivered":
            return Delivered(*task_from_snapshot(reply[1]), snapshot_is_resolved(reply[1]))
        case _:
            return Waiting(int(reply[1]), *task_from_snapshot(reply[2]), snapshot_is_resolved(reply[2]))


def not_created(reply: Sequence[bytes]) -> Known | Conflict | Limited | TooDeep:
    """Parse a reply of ``create_task`` that did not create a task."""
    match reply[0]:
        case b"known":
            return _known(reply)
        case b"limited":
            return Limited.parse(reply)
        case b"deep":
            return TooDeep()
        case _:
            return Conflict()


def final_task(reply: list[Any] | None) -> FinalTask | None:
    """Parse the reply of ``read_task`` to a request for a final state."""
    if not reply:
        return None
    task, newest = task_from_snapshot(reply)
    return FinalTask(task, newest.version, direct_answer(reply))


def _known(reply: Sequence[bytes]) -> Known:
    _, task_id, version, preceding_turns = reply
    return Known(task_id.decode(), int(version), int(preceding_turns))
