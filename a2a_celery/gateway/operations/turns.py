"""Blocking calls and event streams for a turn, from the accepted message to a terminal or interrupted state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, MutableMapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from a2a.types import Message, SendMessageConfiguration, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.task import apply_history_length

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ...lifecycle import Event, EventId, EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ...lifecycle.client_events import client_event
from ...lifecycle.fold import apply
from ...lifecycle.states import COMPLETED, SUBMITTED
from ...store import Scope
from ...store.blobs.references import is_resolved
from ...store.log.pages import LogPage, read_log
from ...store.log.pubsub import LogFollower, LogSignal, follow
from ...store.tasks.commands import read_final_task, unlist_task
from ...store.tasks.results import FinalTask
from ..metrics import Metrics
from .send_message import AcceptedMessage, with_full_task
from .task_reader import cut

EVENT_IDS = "a2a_event_ids"
"""Key of a request's scope and its call context for the ids of the events that the SDK's dispatchers stream. A client
resumes a stream with one of these ids (``Last-Event-ID``)."""

IS_LAST = "a2a_is_last"
"""Key of a call context for a flag that is true if the event that `events_of` has yielded last ends the stream."""


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


def status_after(entry: LogEntry) -> TaskState | None:
    """Return the state of the task after `entry`, or None if the entry does not change the state."""
    if isinstance(entry.event, TaskStatusUpdateEvent):
        return entry.event.status.state
    return COMPLETED if kind_of(entry.event) is EventKind.ANSWER else None


def stream_event(entry: LogEntry, task_id: str, context_id: str, *, is_stored: bool = False) -> StreamEvent | None:
    """Return the stream event for `entry`, or None if streams omit the entry."""
    event = client_event(entry, task_id, context_id)
    return None if event is None else StreamEvent(entry.id, event, is_stored)


class TurnWatch:
    """Detector of the end of a client's turn. A turn ends with a terminal state, or with an interrupted state after its
    start.

    Args:
        preceding_turns: Number of turns that start before the client's turn: 0 for a turn that has started, otherwise
            the message's position in the queue. A turn starts with SUBMITTED, not with the client's message.
    """

    def __init__(self, preceding_turns: int = 0) -> None:
        self._preceding_turns = preceding_turns

    @property
    def is_waiting(self) -> bool:
        """True if the client's turn has not started yet."""
        return self._preceding_turns > 0

    def ends_with(self, entry: LogEntry) -> bool:
        """Return True if `entry`, the next log entry, ends the client's turn."""
        state = status_after(entry)
        if state == SUBMITTED and self._preceding_turns:
            self._preceding_turns -= 1
        if state is None:
            return False
        return is_terminal(state) or (is_interrupted(state) and not self._preceding_turns)

    def read(
        self, entries: Iterable[LogEntry], task: Task, *, after_version: int = 0, until: int = 0
    ) -> tuple[list[StreamEvent], bool]:
        """Select the events of a task that a stream sends.

        Args:
            entries: Next log entries of the task, in order.
            task: Task of the stream.
            after_version: Version of the task that the client has received. Entries up to this version are not sent.
            until: Newest version when the stream began. An entry before this version does not end the turn.

        Returns:
            The events to send, and True if one of the entries ends the turn.
        """
        shown_events: list[StreamEvent] = []
        for entry in entries:
            has_ended = self.ends_with(entry) and entry.version >= until
            event = stream_event(entry, task.id, task.context_id, is_stored=entry.version <= until)
            if event is not None and entry.version > after_version:
                shown_events.append(replace(event, is_last=True) if has_ended else event)
                after_version = entry.version  # the task of a restored page contains the next status
            if has_ended:
                return shown_events, True
        return shown_events, False


async def entries_of(pages: AsyncGenerator[LogPage, None]) -> AsyncGenerator[LogEntry, None]:
    async with aclosing(pages):
        async for page in pages:
            for entry in page.entries:
                yield entry


async def events_of(
    pages: AsyncGenerator[list[StreamEvent], None], state: MutableMapping[str, Any]
) -> AsyncGenerator[Event, None]:
    """Yield the events of `pages` one at a time for the SDK's dispatchers. Add the id of each event to the list
    `EVENT_IDS` in `state`, if there is one, and set `IS_LAST`."""
    ids: list[EventId | None] | None = state.get(EVENT_IDS)
    async with aclosing(pages):
        async for page in pages:
            for event in page:
                if ids is not None:
                    ids.append(event.id)
                state[IS_LAST] = event.is_last
                yield event.event


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
        self, accepted_message: AcceptedMessage, signal: LogSignal, scope: Scope, history_length: int | None
    ) -> Message | Task | TaskStatus | None:
        """Wait for the end of the turn.

        Returns:
            The agent's direct answer, or the task at the end of the turn. If the task has changed since then or cannot
            be read, the status that ended the turn. None if the end is unknown.

        Raises:
            UnsupportedOperationError: The task ended before the turn of a queued message started.
        """
        if (
            is_terminal(accepted_message.task.status.state) and not accepted_message.preceding_turns
        ):  # a repeated message
            return await self._repeated_answer(accepted_message)
        if accepted_message.new:
            await signal.wait(after=accepted_message.newest.version)
            final_task = self._task_in_notification(accepted_message, signal, history_length) or await self._read_final(
                accepted_message, scope, history_length
            )
            if final_task:
                self._metrics.observe_lag(final_task.task.status.timestamp.ToMicroseconds())
                return final_task.answer or final_task.task
        watch = TurnWatch(accepted_message.preceding_turns)
        async with aclosing(
            self.entries(accepted_message.task.id, signal, accepted_message.since, resolve_blobs=False)
        ) as entries:
            async for entry in entries:
                if accepted_message.is_first and _is_direct_answer(entry):
                    event = await self._resolve_event(accepted_message.task.id, entry)
                    assert isinstance(event, Message)
                    return event
                if watch.ends_with(entry):
                    _require_begun(watch, accepted_message)
                    event = await self._resolve_event(accepted_message.task.id, entry)
                    return event.status if isinstance(event, TaskStatusUpdateEvent) else None
        return None

    def _task_in_notification(
        self, accepted_message: AcceptedMessage, signal: LogSignal, history_length: int | None
    ) -> FinalTask | None:
        """Return the task of a new turn from the entries in the notification, or None if the task must be read."""
        page = signal.page(accepted_message.newest)
        if (
            page is None
            or not accepted_message.is_resolved
            or not (is_terminal(page.state) or is_interrupted(page.state))
        ):
            return None
        task = reduce(apply, page.entries, accepted_message.task)
        first = page.entries[0]
        answer = first.event if _is_direct_answer(first) else None
        return FinalTask(cut(task, history_length), page.version, answer if isinstance(answer, Message) else None)

    async def _read_final(
        self, accepted_message: AcceptedMessage, scope: Scope, history_length: int | None
    ) -> FinalTask | None:
        """Return the task of a new turn if it is terminal or interrupted, or None if the caller must follow the log."""
        operation = read_final_task(self._follower.keys, scope, accepted_message.task.id, history_length=history_length)
        try:
            return await self._follower.store.run(operation)
        except StoreUnavailable:
            return None

    async def _resolve_event(self, task_id: str, entry: LogEntry) -> Event | None:
        """Return the event of `entry` with its blob references resolved, or None if the event has been deleted."""
        if is_resolved(entry.event):
            return entry.event
        page = await self._follower.store.run(read_log(self._follower.keys, task_id, entry.version - 1, limit=1))
        return page.entries[0].event if page.entries else None

    async def stream_pages(
        self, accepted_message: AcceptedMessage, signal: LogSignal, configuration: SendMessageConfiguration
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Yield the task and its events until the turn ends, in pages of events that became available together.

        An agent's direct answer is the only event of its stream. An empty page is yielded when no event has occurred
        for a while.

        Raises:
            UnsupportedOperationError: The task ended before the turn of a queued message started.
        """
        new = accepted_message.new
        if accepted_message.is_first and self._hold:
            new = False  # the wait for the first entry has consumed the notification
            first = await self._first_entry(accepted_message, signal)
            if first is not None and _is_direct_answer(first):
                await self.unlist(accepted_message.task.id)
                yield [StreamEvent(first.id, first.event)]
                return
            del first
        accepted_message = await with_full_task(self._follower, accepted_message)
        yield [
            StreamEvent(
                accepted_message.newest, apply_history_length(accepted_message.task, configuration), is_stored=True
            )
        ]
        if is_terminal(accepted_message.task.status.state) and not accepted_message.preceding_turns:
            return
        del configuration
        accepted_message = replace(
            accepted_message, task=Task(id=accepted_message.task.id, context_id=accepted_message.task.context_id)
        )  # a long stream must not keep the task in memory
        watch = TurnWatch(accepted_message.preceding_turns)
        async with aclosing(self.pages(accepted_message.task.id, signal, accepted_message.since, new=new)) as pages:
            async for page in pages:
                if page.restored:
                    accepted_message = replace(accepted_message, newest=EventId(0))  # event versions have restarted
                events, has_ended = watch.read(
                    page.entries, accepted_message.task, after_version=accepted_message.newest.version
                )
                del page
                yield events
                del events
                if has_ended:
                    _require_begun(watch, accepted_message)
                    return

    async def unlist(self, task_id: str) -> None:
        """Remove the task of a direct answer from task lists, because its client receives only the message."""
        with suppress(StoreUnavailable):
            await self._follower.store.run(unlist_task(self._follower.keys, task_id))

    async def wait_until_final(self, task_id: str, signal: LogSignal, version: int, within: float) -> None:
        """Wait up to `within` seconds for an event after `version` that makes the task terminal or interrupted."""
        with suppress(TimeoutError):
            entries = self.entries(task_id, signal, EventId(version), resolve_blobs=False)
            async with self._clock.timeout(within), aclosing(entries):
                async for entry in entries:
                    if TurnWatch().ends_with(entry):
                        return

    async def _first_entry(self, accepted_message: AcceptedMessage, signal: LogSignal) -> LogEntry | None:
        """Return the first entry of the run, or None if it does not arrive within the hold time."""
        until = self._clock.monotonic() + self._hold
        while (seconds := until - self._clock.monotonic()) > 0:
            page = await self._follower.store.run(
                read_log(self._follower.keys, accepted_message.task.id, accepted_message.since, limit=1)
            )
            if page.entries:
                return page.entries[0]
            await signal.wait(seconds)
        return None

    async def _repeated_answer(self, accepted_message: AcceptedMessage) -> Message | None:
        page = await self._follower.store.run(
            read_log(self._follower.keys, accepted_message.task.id, accepted_message.since, limit=1)
        )
        if accepted_message.is_first and page.entries and _is_direct_answer(page.entries[0]):
            assert isinstance(page.entries[0].event, Message)
            return page.entries[0].event
        return None

    def entries(
        self, task_id: str, signal: LogSignal, after: EventId, *, resolve_blobs: bool = True
    ) -> AsyncGenerator[LogEntry, None]:
        """Return an iterator over the entries of a log after the event `after`; see `follow`."""
        return entries_of(self.pages(task_id, signal, after, resolve_blobs=resolve_blobs))

    def pages(
        self, task_id: str, signal: LogSignal, after: EventId, *, new: bool = False, resolve_blobs: bool = True
    ) -> AsyncGenerator[LogPage, None]:
        """Return an iterator over the pages of a log after the event `after`; see `follow`."""
        follower, observer = self._follower, self._metrics.lag_observer()
        return follow(
            follower.store,
            follower.keys,
            signal,
            task_id,
            after,
            new=new,
            resolve_blobs=resolve_blobs,
            on_page=observer,
        )


def _is_direct_answer(entry: LogEntry) -> bool:
    """Return True if `entry` is the agent's message that replaces the task. This message is always entry 2, directly
    after the task."""
    return entry.version == 2 and kind_of(entry.event) is EventKind.ANSWER


def _require_begun(watch: TurnWatch, accepted_message: AcceptedMessage) -> None:
    """Raise UnsupportedOperationError if the task ended before the turn of a queued message started."""
    if watch.is_waiting:
        raise UnsupportedOperationError(
            "The task ended before the turn of this message: send the message without a task id, with this task in "
            "referenceTaskIds",
            data={"taskId": accepted_message.task.id},
        )
