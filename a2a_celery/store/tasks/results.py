"""Results of the commands on tasks, one class per outcome, and the parsers of their replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import Message, Task, TaskState

from ...lifecycle import EventId
from ..codec import direct_answer, snapshot_is_resolved, state_of, task_from_snapshot


@dataclass(frozen=True, slots=True)
class Created:
    """A new task; `task` is its snapshot, up to the event `newest`. Its run wants to be published, unless it stands
    `behind` another of its context."""

    task: Task
    newest: EventId
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The message was accepted before, and is in task `task_id`; nothing was written.

    Its turn is what follows `version` in the task's log, behind as many other turns as `turns_ahead` says.
    """

    task_id: str
    version: int
    turns_ahead: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another message has the same id."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such task, or not for this caller."""


@dataclass(frozen=True, slots=True)
class WrongContext:
    """The message named another context than the task's."""

    context_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The task is over; `state` says how."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class Full:
    """Too many messages wait already."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The task would have more bytes than a task may have; nothing was written."""


@dataclass(frozen=True, slots=True)
class TooManyConfigs:
    """The task has as many push-notification configs as it may have; nothing was written."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit is reached, nothing was written: `limit` is its field in `TaskLimits`, `most` what it allows. `retry_in`
    is in how many seconds a place gets free, by how long runs took so far; 0.0 where none has."""

    limit: str
    most: int
    retry_in: float

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Limited:
        """What ``refused`` in scripts/lib gave."""
        _, limit, most, us = reply
        return cls(limit.decode(), int(most), int(us) / 1e6)


@dataclass(frozen=True, slots=True)
class Begun:
    """The message began run `run`; `task` is the snapshot with it, up to the event `newest`. It wants to be
    published, unless it stands `behind` another of its context. The task may not be `whole`: then it is for no one to
    see."""

    run: int
    task: Task
    newest: EventId
    is_blocked: bool = False
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """The message is the `place`-th that waits (1: the next); `task` is the snapshot without it, up to the event
    `newest`. The task may not be `whole`: then it is for no one to see."""

    place: int
    task: Task
    newest: EventId
    is_resolved: bool = True


Continued = (
    Missing | WrongContext | Ended | Full | TooLarge | TooManyConfigs | Known | Conflict | Limited | Begun | Waiting
)
"""What may become of a further message to a task."""


@dataclass(frozen=True, slots=True)
class FinalTask:
    """The task has ended or waits for its client, at `version`; `answer` is the message alone that it was answered by,
    None for any other."""

    task: Task
    version: int
    answer: Message | None


@dataclass(frozen=True, slots=True)
class CanceledNow:
    """Nobody ran the task: it is CANCELED. `run` was queued and its Celery task can be revoked; None: none was.
    So can those of the `canvas` that worked for it; b"": none did."""

    run: int | None
    version: int
    canvas: bytes = b""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The task's runner was told; the log stood at `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of tasks; `total` counts all that match, `more` says whether another page follows.

    `border_us`: no other task with a status up to then has gone to the archive, and all that went there have one; None:
    none has gone there.
    """

    tasks: list[Task]
    total: int
    more: bool
    border_us: int | None = None


def continued(reply: Sequence[Any]) -> Continued:
    """What `continue_task` answered."""
    match reply[0]:
        case b"missing":
            return Missing()
        case b"context":
            return WrongContext(reply[1].decode())
        case b"ended":
            return Ended(state_of(reply[1]))
        case b"full":
            return Full()
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
            return Begun(int(reply[1]), task, newest, reply[3] == b"1", snapshot_is_resolved(reply[2]))
        case _:
            return Waiting(int(reply[1]), *task_from_snapshot(reply[2]), snapshot_is_resolved(reply[2]))


def not_created(reply: Sequence[bytes]) -> Known | Conflict | Limited:
    """What `create_task` answered that made no task."""
    match reply[0]:
        case b"known":
            return _known(reply)
        case b"limited":
            return Limited.parse(reply)
        case _:
            return Conflict()


def stopped(reply: list[Any] | None) -> FinalTask | None:
    """What `read_task` answered that was asked for a task that has stopped."""
    if not reply:
        return None
    task, newest = task_from_snapshot(reply)
    return FinalTask(task, newest.version, direct_answer(reply))


def _known(reply: Sequence[bytes]) -> Known:
    _, task_id, version, turns_ahead = reply
    return Known(task_id.decode(), int(version), int(turns_ahead))
