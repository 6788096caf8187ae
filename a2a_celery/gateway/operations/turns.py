"""Blocking calls and event streams for a turn, from the accepted message to a terminal or interrupted state."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

from a2a.types import Message, SendMessageConfiguration, Task, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.task import apply_history_length

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ...lifecycle import EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ...lifecycle.fold import TaskFold
from ...lifecycle.references import Scope
from ...operations.errors import not_found
from ...store.codec import omit_contents
from ...store.log.follower import LogFollower, StreamCursor, StreamEvent
from ...store.log.pages import read_next_entry
from ...store.log.pubsub import Wakeup
from ...store.tasks.commands import read_final_task, read_task, unlist_task
from ...store.tasks.replies import Accepted, FinalTask
from ..metrics import Metrics


class TurnFollower:
    """Follower of the turns of one agent's tasks.

    Args:
        follower: Follower of the logs of all tasks.
        hold: Seconds to hold back a new task while its agent may still answer directly, or 0 if the agent never answers
            directly.
        metrics: Metrics that record the lag of events.
        clock: Clock of the process.
    """

    def __init__(self, follower: LogFollower, hold: float, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._follower = follower
        self._clock = clock
        self._metrics = metrics
        self._hold = hold

    async def wait_for_end(
        self, accepted_message: Accepted, wakeup: Wakeup, scope: Scope, history_length: int | None
    ) -> Message | Task | TaskStatus | None:
        """Wait for the end of the turn.

        Returns:
            The agent's direct answer, or the task at the end of the turn. If the task has changed since then or cannot
            be read, the status that ended the turn. None if the end is unknown.

        Raises:
            UnsupportedOperationError: The task ended before the turn of a queued message started.
        """
        if accepted_message.run is not None:
            await wakeup.wait(after=accepted_message.newest.version)
            final_task = _task_in_notification(accepted_message, wakeup, history_length) or await self._read_final(
                accepted_message, scope, history_length
            )
            if final_task is not None:
                self._metrics.observe_lag(final_task.task.status.timestamp.ToMicroseconds())
                return final_task.answer or final_task.task
        cursor = _cursor(accepted_message)
        async with aclosing(self.events(cursor, wakeup, resolve_blobs=False)) as pages:
            async for _ in pages:
                pass
        _require_begun(cursor)
        match cursor.end:
            case LogEntry(event=TaskStatusUpdateEvent(status=status)):
                return status
            case LogEntry() if accepted_message.is_first and _is_direct_answer(cursor.end):
                entry = await self._first_entry(accepted_message)  # with its large parts
                return entry.event if entry is not None and isinstance(entry.event, Message) else None
        return None

    async def _read_final(
        self, accepted_message: Accepted, scope: Scope, history_length: int | None
    ) -> FinalTask | None:
        """Return the task of a new turn if it is terminal or interrupted, or None if the caller must follow the log."""
        operation = read_final_task(self._follower.keys, scope, accepted_message.task.id, history_length=history_length)
        try:
            reply = await self._follower.store.run(operation)
        except StoreUnavailable:
            return None
        return reply if isinstance(reply, FinalTask) else None

    async def with_full_task(self, accepted: Accepted) -> Accepted:
        """Return `accepted` with the blob references of its task resolved. The task may have newer events.

        Raises:
            StoreUnavailable: The task cannot be read.
            TaskNotFoundError: The task no longer exists.
        """
        if accepted.is_resolved:
            return accepted
        snapshot = await self._follower.store.run(read_task(self._follower.keys, None, accepted.task.id))
        if snapshot is None:
            raise not_found(accepted.task.id)
        return replace(accepted, task=snapshot[0], newest=snapshot[1], is_resolved=True)

    async def stream_pages(
        self, accepted_message: Accepted, wakeup: Wakeup, configuration: SendMessageConfiguration
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Yield the task and its events until the turn ends, in pages of events that became available together.

        An agent's direct answer is the only event of its stream. An empty page is yielded when no event has occurred
        for a while.

        Raises:
            UnsupportedOperationError: The task ended before the turn of a queued message started.
        """
        new = accepted_message.run is not None
        if accepted_message.is_first and self._hold:
            new = False  # the wait for the first entry has consumed the notification
            answer = await self._direct_answer(accepted_message, wakeup)
            if answer is not None:
                await self.unlist(accepted_message.task.id)
                yield [StreamEvent(answer.id, answer.event)]
                return
        accepted_message = await self.with_full_task(accepted_message)
        yield [
            StreamEvent(
                accepted_message.newest, apply_history_length(accepted_message.task, configuration), is_stored=True
            )
        ]
        if is_terminal(accepted_message.task.status.state) and not accepted_message.preceding_turns:
            return
        del configuration
        cursor = _cursor(accepted_message)
        del accepted_message  # a long stream must not keep the task in memory
        async with aclosing(self.events(cursor, wakeup, new=new)) as pages:
            async for events in pages:
                yield events
                del events
        _require_begun(cursor)

    async def unlist(self, task_id: str) -> None:
        """Remove the task of a direct answer from task lists, because its client receives only the message."""
        with suppress(StoreUnavailable):
            await self._follower.store.run(unlist_task(self._follower.keys, task_id))

    async def _direct_answer(self, accepted_message: Accepted, wakeup: Wakeup) -> LogEntry | None:
        """Return the entry of the agent's direct answer, or None if the first entry of the run is another one or does
        not arrive within the hold time."""
        until = self._clock.monotonic() + self._hold
        while (seconds := until - self._clock.monotonic()) > 0:
            entry = await self._first_entry(accepted_message)
            if entry is not None:
                return entry if _is_direct_answer(entry) else None
            await wakeup.wait(seconds)
        return None

    async def _first_entry(self, accepted_message: Accepted) -> LogEntry | None:
        """Return the first entry of the turn, or None if it is not written yet or has been deleted."""
        operation = read_next_entry(self._follower.keys, accepted_message.task.id, accepted_message.since)
        return await self._follower.store.run(operation)

    def events(
        self, cursor: StreamCursor, wakeup: Wakeup, *, new: bool = False, resolve_blobs: bool = True
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Return an iterator over the events after a cursor, whose lag is recorded; see `LogFollower.events`."""
        observer = self._metrics.lag_observer()
        return self._follower.events(cursor, wakeup, new=new, resolve_blobs=resolve_blobs, on_page=observer)


def _cursor(message: Accepted) -> StreamCursor:
    """Return the position in the log after which the turn of the message follows."""
    task, sent_version, turns = message.task, message.newest.version, message.preceding_turns
    return StreamCursor(task.id, task.context_id, message.since, sent_version=sent_version, preceding_turns=turns)


def _task_in_notification(accepted_message: Accepted, wakeup: Wakeup, history_length: int | None) -> FinalTask | None:
    """Return the task of a new turn from the entries in the notification, or None if the task must be read."""
    page = wakeup.page(accepted_message.newest)
    if page is None or not accepted_message.is_resolved or not (is_terminal(page.state) or is_interrupted(page.state)):
        return None
    task_fold = TaskFold.resume(accepted_message.task, accepted_message.newest.version)
    for entry in page.entries:
        task_fold.add(entry)
    task = task_fold.task
    assert task is not None
    omit_contents(task, history_length)
    first = page.entries[0]
    answer = first.event if _is_direct_answer(first) else None
    return FinalTask(task, page.version, answer if isinstance(answer, Message) else None)


def _is_direct_answer(entry: LogEntry) -> bool:
    """Return True if `entry` is the agent's message that replaces the task. This message is always entry 2, directly
    after the task."""
    return entry.version == 2 and kind_of(entry.event) is EventKind.AGENT_MESSAGE


def _require_begun(cursor: StreamCursor) -> None:
    """Raise UnsupportedOperationError if the task ended before the turn of a queued message started."""
    if cursor.end is not None and cursor.is_waiting:
        raise UnsupportedOperationError(
            "The task ended before the turn of this message: send the message without a task id, with this task in "
            "referenceTaskIds",
            data={"taskId": cursor.task_id},
        )
