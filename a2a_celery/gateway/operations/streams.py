"""Events that a client receives: visible log entries, and the end of a turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from a2a.types import Task, TaskState, TaskStatusUpdateEvent

from ...lifecycle import Event, EventId, EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ...lifecycle.client_events import client_event
from ...lifecycle.states import COMPLETED, SUBMITTED
from ...store.log.pages import LogPage

EVENT_IDS = "a2a_event_ids"
"""Key of a request's scope and its call context for the ids of the events that the SDK's dispatchers stream. A client
resumes a stream with one of them (``Last-Event-ID``)."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Event for a client. `id` is the event's id in the log, or None if the event is not in the log."""

    id: EventId | None
    event: Event


def status_after(entry: LogEntry) -> TaskState | None:
    """Return the state that `entry` moves its task to, or None if it does not change the state."""
    if isinstance(entry.event, TaskStatusUpdateEvent):
        return entry.event.status.state
    return COMPLETED if kind_of(entry.event) is EventKind.ANSWER else None


def stream_event(entry: LogEntry, task_id: str, context_id: str) -> StreamEvent | None:
    """Return `entry` as a stream in task mode contains it, or None for an entry that streams leave out."""
    event = client_event(entry, task_id, context_id)
    return None if event is None else StreamEvent(entry.id, event)


class TurnWatch:
    """Detects the end of a client's turn: a terminal state, or an interrupted state in the client's own turn.

    Args:
        turns_ahead: Number of client messages whose turns start before this one: 0 for a turn that has started,
            otherwise the message's place in the queue. A turn starts with SUBMITTED, not with the client's message.
    """

    def __init__(self, turns_ahead: int = 0) -> None:
        self._turns_ahead = turns_ahead

    @property
    def is_waiting(self) -> bool:
        """Return whether the client's turn has not started yet."""
        return self._turns_ahead > 0

    def ends_with(self, entry: LogEntry) -> bool:
        """Return whether `entry`, the next one of the log, ends the client's turn."""
        state = status_after(entry)
        if state == SUBMITTED and self._turns_ahead:
            self._turns_ahead -= 1
        if state is None:
            return False
        return is_terminal(state) or (is_interrupted(state) and not self._turns_ahead)

    def read(
        self, entries: Iterable[LogEntry], task: Task, *, after_version: int = 0, until: int = 0
    ) -> tuple[list[StreamEvent], bool]:
        """Return the visible events of `entries`, the next ones of the log of `task`, and whether they end the turn.

        Args:
            after_version: Entries up to this version are not visible: the client has received the task with them.
            until: Version before which the turn cannot end.
        """
        shown_events: list[StreamEvent] = []
        for entry in entries:
            event = stream_event(entry, task.id, task.context_id)
            if event is not None and entry.version > after_version:
                shown_events.append(event)
                after_version = entry.version  # the status of a task that was shown as a whole is known
            if self.ends_with(entry) and entry.version >= until:
                return shown_events, True
        return shown_events, False


async def entries_of(pages: AsyncGenerator[LogPage, None]) -> AsyncGenerator[LogEntry, None]:
    async with aclosing(pages):
        async for page in pages:
            for entry in page.entries:
                yield entry


async def events_of(
    pages: AsyncGenerator[list[StreamEvent], None], ids: list[EventId | None] | None
) -> AsyncGenerator[Event, None]:
    """Yield the events of `pages` one by one for the SDK's dispatchers, and append their ids to `ids`."""
    async with aclosing(pages):
        async for page in pages:
            for event in page:
                if ids is not None:
                    ids.append(event.id)
                yield event.event
