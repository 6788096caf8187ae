"""Reader of a task's log that waits for new entries, and the position of a client in the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from uuid import uuid4

from a2a.types import TaskState, TaskStatusUpdateEvent

from ...lifecycle import Event, EventId, EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ...lifecycle.client_events import client_event
from ...lifecycle.references import Scope
from ...lifecycle.states import COMPLETED, SUBMITTED
from ..client.connection import AsyncStore, run_with_retry
from ..keys import Keys
from ..tasks.commands import ReplyChannel, read_final_task, read_task
from ..tasks.replies import FinalTask
from .pages import LogPage, read_log
from .pubsub import PubSubListener, Wakeup


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Event for a client.

    Attributes:
        id: Id of the event in the log, or None if the event is not in the log.
        event: The event.
        is_stored: True for the task at the beginning of a stream, and for an event that was in the log before a
            subscription began.
        is_last: True for an event of the log that ends the stream.
    """

    id: EventId | None
    event: Event
    is_stored: bool = False
    is_last: bool = False


class StreamCursor:
    """Position of a client in a task's log. The cursor selects the events that the client receives, and detects the end
    of the client's turn: a terminal state, or an interrupted state after the start of the turn.

    Args:
        task_id: Id of the task.
        context_id: Id of the task's context.
        after: Last event that has been read, after which the client continues.
        sent_version: Version of the task that the client has received. Events up to this version are not sent.
        stored_version: Newest version when the stream began. An event before this version does not end the turn.
        preceding_turns: Number of turns that start before the client's turn: 0 for a turn that has started, otherwise
            the message's position in the queue. A turn starts with SUBMITTED, not with the client's message.

    Attributes:
        end: Log entry that ended the turn, or None.
    """

    __slots__ = ("_preceding_turns", "_sent_version", "_stored_version", "after", "context_id", "end", "task_id")

    def __init__(
        self,
        task_id: str,
        context_id: str,
        after: EventId,
        *,
        sent_version: int = 0,
        stored_version: int = 0,
        preceding_turns: int = 0,
    ) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.after = after
        self.end: LogEntry | None = None
        self._sent_version = sent_version
        self._stored_version = stored_version
        self._preceding_turns = preceding_turns

    @property
    def is_waiting(self) -> bool:
        """True if the client's turn has not started yet."""
        return self._preceding_turns > 0

    def read(self, page: LogPage) -> list[StreamEvent]:
        """Advance over the next page of the log, up to the end of the turn. Return the events for the client."""
        if page.restored:  # event versions have restarted
            self._sent_version = self._stored_version = 0
        events: list[StreamEvent] = []
        for entry in page.entries:
            self.after = entry.id
            if self._ends_with(entry) and entry.version >= self._stored_version:
                self.end = entry
            event = client_event(entry, self.task_id, self.context_id)
            if event is not None and entry.version > self._sent_version:
                self._sent_version = entry.version  # the task of a restored page contains the next status
                is_stored = entry.version <= self._stored_version
                events.append(StreamEvent(entry.id, event, is_stored, is_last=self.end is not None))
            if self.end is not None:
                break
        return events

    def _ends_with(self, entry: LogEntry) -> bool:
        state = _state_after(entry)
        if state == SUBMITTED and self._preceding_turns:
            self._preceding_turns -= 1
        if state is None:
            return False
        return is_terminal(state) or (is_interrupted(state) and not self._preceding_turns)


def _state_after(entry: LogEntry) -> TaskState | None:
    """Return the state of the task after `entry`, or None if the entry does not change the state."""
    if isinstance(entry.event, TaskStatusUpdateEvent):
        return entry.event.status.state
    return COMPLETED if kind_of(entry.event) is EventKind.AGENT_MESSAGE else None


class LogFollower:
    """Reader of task logs that waits for new entries with the process's pub/sub listener."""

    def __init__(self, store: AsyncStore, keys: Keys, listener: PubSubListener) -> None:
        self.store = store
        self.keys = keys
        self.listener = listener
        self._reply_channel = keys.reply_channel(uuid4().hex)

    def reply_channel(self, *, final_only: bool) -> ReplyChannel:
        """Return the reply channel of this process.

        Args:
            final_only: True if the channel receives final states only.
        """
        return ReplyChannel(self._reply_channel, final_only)

    def listen(
        self, task_id: str, reply_channel: ReplyChannel | None = None, *, final_only: bool = False
    ) -> AbstractAsyncContextManager[Wakeup]:
        """Subscribe to the notifications of a task for the duration of a ``with`` block.

        The `Wakeup` of the ``with`` statement is notified of new log entries. Enter the block before you read the
        log.

        Args:
            task_id: Id of the task.
            reply_channel: Reply channel with which the task was created, or None. A reply channel saves a round trip.
            final_only: True if only final states notify the `Wakeup`.
        """
        return self.listener.listen(
            self.keys.task(task_id).notifications,
            through=reply_channel.channel if reply_channel else "",
            final_only=final_only,
        )

    async def final_task(
        self, scope: Scope, task_id: str, *, history_length: int | None = None, after: int = 0
    ) -> FinalTask | None:
        """Wait until a task is terminal or interrupted, and return the task, or None if the task is not in `scope`.

        Args:
            scope: Scope of the task.
            task_id: Id of the task.
            history_length: Number of history messages to read, or None for all.
            after: Version after which the task must become terminal or interrupted.

        Raises:
            StoreUnavailable: The store was unavailable for `RETRY_TIMEOUT` seconds.
        """
        operation = read_final_task(self.keys, scope, task_id, history_length=history_length)
        async with self.listen(task_id, final_only=True) as wakeup:
            while True:
                reply = await run_with_retry(self.store, operation)
                if reply is None or (isinstance(reply, FinalTask) and reply.version > after):
                    return reply
                await wakeup.wait()

    async def events(
        self,
        cursor: StreamCursor,
        wakeup: Wakeup,
        *,
        new: bool = False,
        resolve_blobs: bool = True,
        on_page: Callable[[LogPage], None] | None = None,
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Yield the events after a cursor, without gaps or repeats, until the turn ends or the task no longer exists.

        The events of a page became available together. A page is empty if a poll finds no new event. Polls are at most
        `POLL_INTERVAL` seconds apart. A slow reader keeps one page in memory and does not delay other readers.

        If a restored store has lost entries that were already read, the next event is the complete task. The event has
        the id of the task's newest entry, whose version may be lower than the versions of earlier events.

        Args:
            cursor: Position of the client, which is advanced.
            wakeup: Wakeup that already listens to the task.
            new: True if the entry at the cursor was written while `wakeup` listened, so that no read of the log is
                necessary before the first wait.
            resolve_blobs: False to leave blob references unresolved.
            on_page: Function that is called with each page of the log before the page is yielded, or None.

        Raises:
            StoreUnavailable: The store was unavailable for `RETRY_TIMEOUT` seconds.
        """
        if new:
            await wakeup.wait(after=cursor.after.version)
        while True:
            page = wakeup.page(cursor.after) or await self._read_page(cursor, resolve_blobs=resolve_blobs)
            if page.version == 0:
                return
            if on_page is not None:
                on_page(page)
            events = cursor.read(page)
            all_read = page.version <= cursor.after.version
            del page
            yield events
            del events
            if cursor.end is not None:
                return
            if all_read:
                await wakeup.wait(after=cursor.after.version)

    async def _read_page(self, cursor: StreamCursor, *, resolve_blobs: bool) -> LogPage:
        """Read the page after a cursor. If the store lost the event at the cursor, the page has the complete task and
        its status."""
        page = await run_with_retry(
            self.store, read_log(self.keys, cursor.task_id, cursor.after, resolve_blobs=resolve_blobs)
        )
        if not page.restored:
            return page
        snapshot = await run_with_retry(
            self.store, read_task(self.keys, None, cursor.task_id, resolve_blobs=resolve_blobs)
        )
        if snapshot is None:
            return LogPage([], 0, page.state)
        task, newest = snapshot
        status = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)
        entries = [LogEntry(*newest, task), LogEntry(*newest, status)]
        return LogPage(entries, newest.version, task.status.state, restored=True)
