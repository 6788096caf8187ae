"""Event queue of a run. The queue validates an agent's events, and writes them to the log in order and in batches.

While a write is in progress, further events are collected for the next write. A streaming agent therefore makes one
round trip per write instead of one per event, and the cost of a chunk does not grow with the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from enum import Enum, IntEnum
from typing import Any, TypeVar

from a2a.server.events import EventQueue
from a2a.types import Message, Task, TaskState, TaskStatusUpdateEvent

from ...concurrency import LeanEvent
from ...errors import BlobsUnavailable
from ...lifecycle import Event, Failure, is_interrupted, is_terminal
from ...lifecycle.execution import Activity
from ...lifecycle.journal import JournalEntry, RunRecord
from ...lifecycle.states import COMPLETED, WORKING
from ...store import Operation
from ...store.runs.commands import Claim, Illegal, RunLost, Written, append
from ...store.runs.recovery import without_artifacts
from ...store.runs.release import Released
from ...store.runs.suspension import SuspendedRun
from ...store.tasks.commands import read_task
from ..open_run import OpenRun
from .activities import ACTIVITY_DELAY, ActivityRecorder
from .settlement import drop
from .translator import Translator

T = TypeVar("T")
R = TypeVar("R", bound=Released | SuspendedRun)

ITERATIONS_TO_RETURN = 5
"""Number of iterations of the event loop between the return of an agent and the call to `settle`."""


class Writer:
    """Writer that calls `write` in an asyncio task, `ITERATIONS_TO_RETURN` iterations of the event loop after a call.

    If there are further calls during `write`, the asyncio task calls `write` again.

    An agent returns a few iterations of the event loop after its last event. Writing the event and the outcome of the
    run together saves a round trip and an asyncio task. No caller waits for these iterations, which take microseconds.

    Args:
        write: Function that writes events until no events are left or the run is over.
        over: Function that returns True if the run is over and `write` must not be called.
        ended: Function that is called with each finished asyncio task.
        name: Name of the asyncio tasks.
    """

    # each waiting run has an instance
    __slots__ = ("_called", "_context", "_ended", "_is_active", "_name", "_over", "_task", "_write")

    def __init__(
        self,
        write: Callable[[], Coroutine[Any, Any, None]],
        *,
        over: Callable[[], bool],
        ended: Callable[[asyncio.Task[None]], None],
        name: str,
    ) -> None:
        self._write = write
        self._over = over
        self._ended = ended
        self._name = name
        self._context = copy_context()  # the context of the run, not of its agent
        self._called = LeanEvent()
        self._is_active = False
        self._task: asyncio.Task[None] | None = None

    def call(self) -> None:
        """Request a write. A write in progress also writes the new events."""
        self._called.set()
        if not self._is_active:
            self._is_active = True
            self._begin(ITERATIONS_TO_RETURN)

    async def is_called_within(self, seconds: float) -> bool:
        """Return True if `call` or `finish` is called before `seconds` have passed. Only `write` may call this
        function."""
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop without writing the pending events."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def finish(self) -> asyncio.Task[None] | None:
        """Wait until no write is in progress. A write that waits for a call does not wait longer.

        Returns:
            The asyncio task of the last write, or None if there was no write or the task was released.
        """
        task = self._task
        self._called.set()
        if task is not None and not task.done():
            await asyncio.wait({task})
        return task

    def _begin(self, iterations: int) -> None:
        loop = asyncio.get_running_loop()
        if self._over():
            return
        if iterations:
            loop.call_soon(self._begin, iterations - 1, context=self._context)
            return
        self._task = loop.create_task(self._write_all(), name=self._name, context=self._context)
        self._task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Release a finished asyncio task to free its memory, because an agent may be silent for a long time."""
        if self._task is task and not task.cancelled() and task.exception() is None:
            self._task = None
        self._ended(task)

    async def _write_all(self) -> None:
        while self._called.is_set() and not self._over():
            self._called.clear()
            await self._write()
        self._is_active = False


logger = logging.getLogger(__name__)

WriteEnd = Callable[[list[RunRecord], int], Awaitable[Failure | RunLost | None]]
"""Function that writes the last events of a run, after the given number of written events; see `Settlement.write`."""

MAX_RECORDS_PER_WRITE = 64
CONFIRMATION_TIMEOUT = 1.0
"""Maximum seconds for which a cancelled agent waits until the result of a finished activity is recorded."""

MAX_PENDING = 256
"""Number of unwritten events at which `enqueue_event` waits for the store."""


class RecordBuffer:
    """Records of a run that the store has not confirmed, in the order in which they are written.

    Attributes:
        records: The unconfirmed records. Other code may only add records.
        written_count: Number of records that the store has confirmed.
    """

    # each waiting run has an instance
    __slots__ = ("_change", "_confirmations", "records", "written_count")

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self.written_count = 0
        self._change = LeanEvent()
        self._confirmations: dict[int, asyncio.Future[None]] = {}  # by the `id` of an unconfirmed record

    def first(self) -> list[RunRecord]:
        """Return the records of the next write."""
        return self.records[:MAX_RECORDS_PER_WRITE]

    def before_last_event(self) -> list[RunRecord]:
        """Return the records of the next write if the last event and the records after it are held back."""
        records = list(self.records)
        while records and isinstance(records.pop(), Activity | JournalEntry):
            pass
        return records[:MAX_RECORDS_PER_WRITE]

    def confirmation(self) -> asyncio.Future[None]:
        """Return a future that is resolved when the store has confirmed all records, and cancelled if the last record
        is dropped."""
        future = self._confirmations[id(self.records[-1])] = asyncio.get_running_loop().create_future()
        return future

    def confirm(self, count: int) -> None:
        """Remove the first `count` records, because the store has confirmed them."""
        self.written_count += count
        if self._confirmations:
            for record in self.records[:count]:
                if confirmation := self._confirmations.pop(id(record), None):
                    confirmation.set_result(None)
        del self.records[:count]
        self.wake()

    def drop(self, illegal: Illegal, claim: Claim) -> None:
        """Remove an event that the store has refused."""
        if confirmation := self._confirmations.pop(id(self.records[illegal.number - 1]), None):
            confirmation.cancel()
        drop(self.records, illegal, claim)
        self.wake()

    def cancel_confirmations(self) -> None:
        """Cancel the futures of `confirmation`. The records remain in the buffer."""
        for confirmation in self._confirmations.values():
            confirmation.cancel()
        self._confirmations.clear()

    def clear(self) -> None:
        """Drop all records."""
        self.cancel_confirmations()
        self.records.clear()
        self.wake()

    async def wait_for_change(self) -> None:
        """Wait until records are confirmed or dropped, or `wake` is called."""
        self._change.clear()
        await self._change.wait()

    def wake(self) -> None:
        """End all calls of `wait_for_change`."""
        self._change.set()


class QueueState(IntEnum):
    """State of an event queue, which only moves forward."""

    OPEN = 1
    """Events are accepted and written."""
    CLOSED = 2
    """Events are dropped. Pending events are written."""
    SETTLING = 3
    """`settle` or `release` is writing the pending events."""
    UNWRITABLE = 4
    """The blobs of pending events cannot be stored, so the run can only fail."""
    LOST = 5
    """The run is lost for this process, so no event is written."""


class EndPolicy(Enum):
    """Time at which the terminal event of an agent is written."""

    IMMEDIATE = "with the next write"
    AFTER_CANCEL = "when the canceled agent has stopped"
    AFTER_RETURN = "when the agent has returned"


class RunEventQueue(EventQueue):
    """Event queue of one run, which the agent writes to. Use the queue only on the event loop of the worker process.

    Args:
        run: The run.
        hold: Seconds to hold back WORKING or an interrupted state in case a further event follows.
        message_allowed: True if the first event of the task may be a message without a task.
        ends_on_return: True to write a terminal event only when the agent has returned.
        on_end: Function that receives the terminal state of the task before the state is queued, or None. Activities
            that the function records precede the state.
        activity_delay: Maximum seconds that an activity waits to be written together with an event.

    Attributes:
        translator: Translator of the agent's events.
        aborted: Event that is set when the queue becomes UNWRITABLE or LOST.
        blob_error: Error that made the queue UNWRITABLE, or None.
    """

    def __init__(
        self,
        run: OpenRun,
        *,
        hold: float,
        message_allowed: bool = True,
        ends_on_return: bool = False,
        on_end: Callable[[TaskState], None] | None = None,
        activity_delay: float = ACTIVITY_DELAY,
    ) -> None:
        claim = run.claim
        self._run = run
        self._hold = hold
        self._rewriters: tuple[Callable[[Event], Awaitable[Event]], ...] = ()
        is_first = claim.turn.number == 1 and claim.snapshot.version == 1
        self.translator = Translator(claim.task, message_allowed=is_first and message_allowed)
        self._buffer = RecordBuffer()
        self._state = QueueState.OPEN
        self._end_policy = EndPolicy.AFTER_RETURN if ends_on_return else EndPolicy.IMMEDIATE
        self._announcement: asyncio.TimerHandle | None = None
        self.aborted = LeanEvent()
        self.blob_error: BlobsUnavailable | None = None
        self._writer = Writer(
            self._write, over=self._is_over, ended=self._on_writer_end, name=f"a2a-events-{claim.ref.name}"
        )
        self._activities = ActivityRecorder(self._buffer.records, run, self._writer.call, activity_delay, on_end)

    @property
    def state(self) -> TaskState:
        """State of the task after all events of the agent."""
        return self.translator.state

    @property
    def ended(self) -> bool:
        """True if the agent has sent a terminal state."""
        return is_terminal(self.translator.state)

    @property
    def is_finished(self) -> bool:
        """True if the agent has sent a terminal state that can be written before the agent returns."""
        return self.ended and self._end_policy is not EndPolicy.AFTER_RETURN

    @property
    def paused(self) -> bool:
        """True if the agent's last state is an interrupted state."""
        return is_interrupted(self.translator.state)

    def announce_later(self) -> None:
        """Send WORKING unless the agent sends an event within `hold` seconds.

        Until then, the agent may still reply with only a message.
        """
        self._announcement = asyncio.get_running_loop().call_later(self._hold, self._announce)

    def add_rewriter(self, rewrite: Callable[[Event], Awaitable[Event]]) -> None:
        """Pass each event of the agent to `rewrite`, which returns the event to send."""
        self._rewriters += (rewrite,)

    async def enqueue_event(self, event: Event) -> None:
        """Queue an event of the agent. The call waits only for rewriters, or if `MAX_PENDING` events are unwritten.

        Events after a terminal state, and events after `close`, are dropped.

        Raises:
            InvalidAgentResponseError: The event is invalid. The agent may catch the error and continue.
            Exception: A rewriter failed. All further events of the agent are dropped.
        """
        with self._run.idle_clock:
            await self._enqueue(event)

    async def _enqueue(self, event: Event) -> None:
        if self._accepts_events and self.translator.detect_error(event):
            self.close()
        if not self._accepts_events:
            logger.debug("run %s: dropped an event that its agent sent after the end", self._run.claim.ref.name)
            return
        if self._rewriters:
            try:
                for rewrite in self._rewriters:
                    event = await rewrite(event)
            except Exception:
                self.close()  # the agent may catch the exception
                raise
            if not self._accepts_events:
                return
        self._add(self.translator.translate(event))
        while len(self._buffer.records) >= MAX_PENDING and self._state is QueueState.OPEN:
            await self._buffer.wait_for_change()

    def enqueue_optional(self, event: TaskStatusUpdateEvent) -> None:
        """Queue an event without waiting.

        The event is dropped if `MAX_PENDING` events are unwritten, or after an interrupted state, which the event
        would undo.
        """
        if self._accepts_events and not self.paused and len(self._buffer.records) < MAX_PENDING:
            self._add(self.translator.translate(event))

    def record(self, activity: Activity) -> None:
        """Record an execution activity, which resets the idle time of the agent."""
        self._run.idle_clock.touch()
        self._activities.record(activity)

    def add_entries(self, entries: Sequence[JournalEntry]) -> None:
        """Queue journal entries, to be written with the next events."""
        if not self._is_over() and not self.ended:
            self._buffer.records.extend(entries)

    async def write_entries(self, entries: Sequence[JournalEntry]) -> None:
        """Write journal entries after all events sent so far, and return when the store has confirmed them.

        A run that must stop still writes the entries. If the caller is cancelled, it waits up to `CONFIRMATION_TIMEOUT`
        seconds for the store, because otherwise the result of finished work would be lost.

        Raises:
            CancelledError: The run is lost, or ended before the entries were written.
        """
        if self._is_over() or self.ended or self._run.is_lost:
            raise asyncio.CancelledError
        self._buffer.records.extend(entries)
        confirmation = self._buffer.confirmation()
        self._writer.call()
        with self._run.idle_clock:
            try:
                await asyncio.shield(confirmation)
            except asyncio.CancelledError:
                if not confirmation.done():
                    await asyncio.wait({confirmation}, timeout=CONFIRMATION_TIMEOUT)
                raise

    @property
    def _accepts_events(self) -> bool:
        return self._state is QueueState.OPEN and not self.ended

    def add_to_end(self, metadata: dict[str, Any]) -> bool:
        """Add metadata to the last status of the agent. Return False if that status has already been written."""
        for event in reversed(self._buffer.records):
            if isinstance(event, Message) or (
                isinstance(event, TaskStatusUpdateEvent) and event.status.state == self.translator.state
            ):
                event.metadata.update(metadata)
                return True
        return False

    def end_after_return(self) -> None:
        """Write a terminal event of the agent only when the agent has returned."""
        self._end_policy = EndPolicy.AFTER_RETURN

    def hold_end(self) -> None:
        """Prepare for the cancellation of the agent.

        A terminal state is held back until `settle`, and is CANCELED unless the agent has already sent another terminal
        state.
        """
        if self._end_policy is EndPolicy.IMMEDIATE:
            self._end_policy = EndPolicy.AFTER_CANCEL
        self.translator.ask_to_cancel()

    def close(self) -> None:
        """Drop all further events of the agent."""
        self._move_to(QueueState.CLOSED)
        self._cancel_announcement()
        self._buffer.wake()

    async def flush(self) -> None:
        """Wait until the store has confirmed all events that the agent has sent so far. The run continues.

        Raises:
            CancelledError: The run is lost, or ended before these events were written.
        """
        while self._next_batch() and not self._run.is_lost:
            if self._is_over():
                raise asyncio.CancelledError
            self._writer.call()
            await self._buffer.wait_for_change()
        if self._state >= QueueState.UNWRITABLE:
            raise asyncio.CancelledError

    async def run_fenced(self, make: Callable[[int], Operation[T | RunLost]]) -> T:
        """Run the store operation that `make` builds from the number of written events. The run continues.

        Raises:
            CancelledError: The run is lost.
        """
        reply = await self._run.execute(make(self._buffer.written_count))
        if isinstance(reply, RunLost):
            self.mark_lost()
            raise asyncio.CancelledError
        return reply

    async def settle(self, final: TaskStatusUpdateEvent | None, write: WriteEnd) -> Failure | None:
        """End the run: write the pending events, then `final`. No event is written if the run is lost.

        Args:
            final: Final status of the run, or None. The status is not written if the agent has sent a terminal state,
                or if the status is COMPLETED and the agent has sent an interrupted state.
            write: Function that writes these events and ends the run.

        Returns:
            The failure of the task if `write` has returned one, or None.
        """
        if not await self._begin_settlement():
            return None
        if final is not None and self.blob_error is not None:
            self._buffer.clear()  # no event was written after the error, so no final event was written either
            self._buffer.records.append(final)
        elif final is not None and not (self.ended or (self.paused and final.status.state == COMPLETED)):
            self._buffer.records.extend(self.translator.translate(final))
        if not self._buffer.records and self.ended:  # a terminal state that was written has already closed the run
            return None
        reply = await write(list(self._buffer.records), self._buffer.written_count)
        if isinstance(reply, RunLost):
            self.mark_lost()
            return None
        return reply

    async def release(
        self,
        final: TaskStatusUpdateEvent | None,
        release_run: Callable[..., Operation[R | RunLost | Illegal]],
        *,
        drops_open_artifacts: bool = False,
    ) -> R | RunLost:
        """Release the run so that it can continue without this worker.

        Args:
            final: Status to write after the remaining events, or None.
            release_run: Function that builds the store operation that writes the events and `final`, such as
                `store.runs.release.release_run`.
            drops_open_artifacts: True to remove from the task the artifacts that the run began but did not finish.

        Returns:
            The reply of the store operation, or RunLost if the run is lost.
        """
        if not await self._begin_settlement():
            return RunLost()
        claim = self._run.claim
        replacement = {"replacement": await self._without_open_artifacts()} if drops_open_artifacts else {}
        if final is not None and not self.ended:
            self._buffer.records.extend(self.translator.translate(final))
        while not self._run.is_lost:
            written = {"written_count": self._buffer.written_count, "events": list(self._buffer.records)}
            operation = release_run(self._run.keys, claim.ref, token=claim.token, **written, **replacement)
            reply = await self._run.execute(operation)
            if not isinstance(reply, Illegal):
                return reply
            self._buffer.drop(reply, claim)
        return RunLost()

    async def _without_open_artifacts(self) -> Task | None:
        """Write the pending events, and return the stored task without the run's open artifacts. Return None if no
        artifact is open.

        No other writer changes the task while this worker has the run.
        """
        open_artifacts = self.translator.open_artifacts
        if not open_artifacts:
            return None
        while self._buffer.records and not self._run.is_lost:
            await self._append(self._buffer.first())
        snapshot = await self._run.execute(
            read_task(self._run.keys, None, self._run.claim.task.id, resolve_blobs=False)
        )
        return without_artifacts(snapshot[0], open_artifacts) if isinstance(snapshot, tuple) else None

    async def abandon(self) -> None:
        """Stop without writing the pending events, because the run is lost for this process."""
        self.mark_lost()
        await self._writer.stop()

    async def _begin_settlement(self) -> bool:
        """Close the queue and wait for the writer. Return False if the run is lost."""
        self.close()
        self.translator.close()
        self._move_to(QueueState.SETTLING)
        self._buffer.cancel_confirmations()
        last = await self._writer.finish()
        if last is not None and self.blob_error is None:
            last.result()
        return not self._run.is_lost

    async def _write(self) -> None:
        while not self._is_over() and (batch := self._next_batch()):
            await self._append(batch)
        if self._buffer.records and self.paused and not self._is_over() and await self._stays_silent():
            await self._append(list(self._buffer.records))

    def _is_over(self) -> bool:
        return self._state >= QueueState.SETTLING

    def _move_to(self, state: QueueState) -> None:
        self._state = max(self._state, state)

    def _next_batch(self) -> list[RunRecord]:
        """Return the records to write next, without a state that is held back; see `EndPolicy` and `_stays_silent`."""
        if self.paused or (self._end_policy is not EndPolicy.IMMEDIATE and self.ended):
            return self._buffer.before_last_event()
        return self._buffer.first()

    async def _stays_silent(self) -> bool:
        """Return True if the agent continues for `hold` seconds after an interrupted state without another event.

        In this case, the client must be informed of the state. If the agent returns instead, `settle` writes the state,
        because a client cannot answer while the run is open.
        """
        return not await self._writer.is_called_within(self._hold) and not self._is_over()

    async def _append(self, batch: list[RunRecord]) -> None:
        claim, written_count = self._run.claim, self._buffer.written_count
        reply = await self._run.execute(
            append(self._run.keys, claim.ref, token=claim.token, written_count=written_count, events=batch)
        )
        match reply:
            case Written():
                self._buffer.confirm(len(batch))
            case RunLost():
                self.mark_lost()
            case Illegal():
                self._buffer.drop(reply, claim)

    def _on_writer_end(self, writer: asyncio.Task[None]) -> None:
        error = None if writer.cancelled() else writer.exception()
        if isinstance(error, BlobsUnavailable):
            self.fail_unwritable(error)
        elif error is not None:
            logger.error("run %s: its events cannot be written", self._run.claim.ref.name, exc_info=error)
            self.mark_lost()

    def fail_unwritable(self, error: BlobsUnavailable) -> None:
        """Drop the pending events, because their blobs cannot be stored. After that, the run can only fail."""
        self.blob_error = error
        self._abort(QueueState.UNWRITABLE)

    def mark_lost(self) -> None:
        """Drop the pending events, because the run is lost for this process. Waiting writes are abandoned."""
        self._run.mark_lost()
        self._abort(QueueState.LOST)

    def _abort(self, state: QueueState) -> None:
        self._move_to(state)
        self.aborted.set()
        self.close()
        self._buffer.clear()

    def _add(self, events: list[Event]) -> None:
        if events:
            if self.ended:
                self._activities.end(self.state)
            self._cancel_announcement()
            self._buffer.records.extend(events)
            self._writer.call()

    def _announce(self) -> None:
        if self._state is QueueState.OPEN and not self.translator.spoken:
            self._add(self.translator.status(WORKING))

    def _cancel_announcement(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None
