"""Replies of the commands on tasks, and their parsers. A refusal is a `Refusal`; see ``lifecycle.refusals``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import Message, Task

from ...lifecycle import EventId
from ...lifecycle.refusals import Reason, Refusal
from ..codec import direct_message, state_of, task_from_snapshot


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted message. The caller publishes the run that the message begins, unless the run is blocked or published.

    Attributes:
        task: Snapshot of the task at the event `newest`. If the message waits, the snapshot does not contain it.
        newest: Id of the newest event.
        run: Number of the run that the message begins, or None if a run is open, which receives the message or after
            which the message waits, or if the message is repeated.
        preceding_turns: Number of turns that start after `since` and before the turn of the message.
        is_blocked: True if another run of the context must end first.
        is_published: True if the broker has the message of the run.
        is_resolved: False if `task` has unresolved blob references. A client must not receive such a task.
        since: Event after which the log contains the turn of the message.
    """

    task: Task
    newest: EventId
    run: int | None = None
    preceding_turns: int = 0
    is_blocked: bool = False
    is_published: bool = False
    is_resolved: bool = True
    since: EventId = field(kw_only=True)

    @property
    def is_first(self) -> bool:
        """True if the message created the task."""
        return self.since.version == 1 and not self.preceding_turns


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
class NotFinal:
    """Task in a state that is not final."""


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


Reasons = Mapping[bytes, tuple[Reason, Mapping[str, Any]]]
"""Reason of a refusal by the first element of a script's reply, with the data that the script does not return."""


def refusal(task_id: str, reply: Sequence[bytes], reasons: Reasons) -> Refusal:
    """Parse the reply of a script that refuses what the caller asks for."""
    (reason, data), values = reasons[reply[0]], reply[1:]
    match reply[0]:
        case b"limited":
            limit, maximum, wait_us = values
            data = {"limit": limit.decode(), "maximum": int(maximum), "retry_in": int(wait_us) / 1e6}
        case b"ended":
            data = {"state": state_of(values[0])}
        case b"context":
            data = {"context": values[0].decode()}
        case b"unreceived":
            data = {"agent": values[0].decode()}
    return Refusal(reason, task_id, data)


def final_task(reply: list[Any] | None) -> FinalTask | NotFinal | None:
    """Parse the reply of ``read_task`` to a call that reads final states only."""
    if reply is None:
        return None
    if not reply:
        return NotFinal()
    task, newest = task_from_snapshot(reply)
    return FinalTask(task, newest.version, direct_message(reply))
