"""How a log becomes an answer: which of its entries a client sees, and where a call or a stream ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from a2a.types import Task, TaskState, TaskStatusUpdateEvent

from ..lifecycle import Event, EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ..lifecycle.shown import shown_event
from ..lifecycle.states import COMPLETED, SUBMITTED
from ..store.log import LogPage

VERSIONS = "a2a_versions"
"""Where, in a request's scope and its call context, the versions of events that the SDK's dispatchers stream are left
for who writes them: with them a client can come back (``Last-Event-ID``)."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An event for a client; `version` is its place in the log, None for one that is not in it."""

    version: int | None
    event: Event


def status_after(entry: LogEntry) -> TaskState | None:
    """The state that `entry` puts its task in; None when it doesn't."""
    if isinstance(entry.event, TaskStatusUpdateEvent):
        return entry.event.status.state
    return COMPLETED if kind_of(entry.event) is EventKind.ANSWER else None


def shown(entry: LogEntry, task_id: str, context_id: str) -> Shown | None:
    """`entry` as a stream in task mode shows it; None for what streams don't show."""
    event = shown_event(entry, task_id, context_id)
    return None if event is None else Shown(entry.version, event)


class TurnWatch:
    """Knows when a client's turn has ended: at a terminal state, or at a pause of its own turn.

    `ahead` counts the client messages that must begin turns before it does: 0 for a turn that has begun, else the
    message's place among those that wait. A turn begins with SUBMITTED; a client's message alone begins none.
    """

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    @property
    def waits(self) -> bool:
        """Whether the client's turn has not begun yet."""
        return self._ahead > 0

    def ends_with(self, entry: LogEntry) -> bool:
        """Whether `entry`, the next of the log, is the last that concerns the client."""
        state = status_after(entry)
        if state == SUBMITTED and self._ahead:
            self._ahead -= 1
        if state is None:
            return False
        return is_terminal(state) or (is_interrupted(state) and not self._ahead)

    def read(
        self, entries: Iterable[LogEntry], task: Task, *, behind: int = 0, until: int = 0
    ) -> tuple[list[Shown], bool]:
        """What the client of `task` is shown of `entries`, the next of its log, `behind` that version; and whether they
        hold the last that concerns it, which is never before version `until`."""
        seen: list[Shown] = []
        for entry in entries:
            one = shown(entry, task.id, task.context_id)
            if one is not None and entry.version > behind:
                seen.append(one)
                behind = entry.version  # the status of a task that was shown as a whole is known
            if self.ends_with(entry) and entry.version >= until:
                return seen, True
        return seen, False


async def entries_of(pages: AsyncGenerator[LogPage, None]) -> AsyncGenerator[LogEntry, None]:
    """The entries of `pages`, one by one."""
    async with aclosing(pages):
        async for page in pages:
            for entry in page.entries:
                yield entry


async def each_of(
    pages: AsyncGenerator[list[Shown], None], versions: list[int | None] | None
) -> AsyncGenerator[Event, None]:
    """The events of `pages`, one by one, for the SDK's dispatchers; their versions are left for who writes them."""
    async with aclosing(pages):
        async for page in pages:
            for one in page:
                if versions is not None:
                    versions.append(one.version)
                yield one.event
