"""Following a turn: from the message that was accepted to the event that ends it for its client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import reduce

from a2a.types import Message, SendMessageConfiguration, Task, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.task import apply_history_length

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreUnavailable
from ..lifecycle import Event, EventKind, LogEntry, is_interrupted, is_terminal, kind_of
from ..lifecycle.fold import apply
from ..store import Scope
from ..store.answers import Stopped
from ..store.follow import LogFollower, follow
from ..store.log import LogPage, read_log
from ..store.references import is_whole
from ..store.tasks import read_stopped, unlist_task
from ..store.wake import Bell
from .intake import Sent, in_full
from .kept import cut
from .metrics import Metrics
from .streams import Shown, TurnWatch, entries_of


class TurnFollower:
    """Follows turns. `hold` is how long, in seconds, a new task is kept back for a direct answer; 0: not at all."""

    def __init__(self, follower: LogFollower, hold: float, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._follower = follower
        self._clock = clock
        self._metrics = metrics
        self._hold = hold

    async def end_of(
        self, sent: Sent, bell: Bell, scope: Scope, history_length: int | None
    ) -> Message | Task | TaskStatus | None:
        """Waits for the end of the turn; gives the agent's direct answer, the task as it is then, or where that goes on
        again or can't be read, the status that ended the turn, if one did."""
        if is_terminal(sent.task.status.state) and not sent.ahead:  # a message that came again
            return await self._answer_that_ended(sent)
        if sent.new:
            await bell.wait(behind=sent.version)
            stopped = self._told(sent, bell, history_length) or await self._stopped(sent, scope, history_length)
            if stopped:
                self._metrics.handed_on(stopped.task.status.timestamp.ToMicroseconds())
                return stopped.answer or stopped.task
        watch = TurnWatch(sent.ahead)
        async with aclosing(self.entries(sent.task.id, bell, sent.since, whole=False)) as entries:
            async for entry in entries:
                if sent.is_first and _is_direct_answer(entry):
                    event = await self._whole(sent.task.id, entry)
                    assert isinstance(event, Message)
                    return event
                if watch.ends_with(entry):
                    _require_begun(watch, sent)
                    event = await self._whole(sent.task.id, entry)
                    return event.status if isinstance(event, TaskStatusUpdateEvent) else None
        return None

    def _told(self, sent: Sent, bell: Bell, history_length: int | None) -> Stopped | None:
        """The task of a new turn as its ring has brought it; None: it must be read."""
        page = bell.page(sent.version)
        if page is None or not sent.whole or not (is_terminal(page.state) or is_interrupted(page.state)):
            return None
        task = reduce(apply, page.entries, sent.task)
        first = page.entries[0]
        answer = first.event if _is_direct_answer(first) else None
        return Stopped(cut(task, history_length), page.version, answer if isinstance(answer, Message) else None)

    async def _stopped(self, sent: Sent, scope: Scope, history_length: int | None) -> Stopped | None:
        """The task of a new turn, if it has stopped; None: the log, which is waited for, says more."""
        read = read_stopped(self._follower.keys, scope, sent.task.id, history_length=history_length)
        try:
            return await self._follower.store.run(read)
        except StoreUnavailable:
            return None

    async def _whole(self, task_id: str, entry: LogEntry) -> Event | None:
        """The event of an entry that may not be whole; None: it is gone."""
        if is_whole(entry.event):
            return entry.event
        page = await self._follower.store.run(read_log(self._follower.keys, task_id, entry.version - 1, limit=1))
        return page.entries[0].event if page.entries else None

    async def pages_of(
        self, sent: Sent, bell: Bell, configuration: SendMessageConfiguration
    ) -> AsyncGenerator[list[Shown], None]:
        """The task, and its events until the turn ends, as many together as there are; or the agent's direct answer
        alone. An empty page: nothing has happened for a while."""
        new = sent.new
        if sent.is_first and self._hold:
            new = False  # what has rung was heard
            first = await self._first_word(sent, bell)
            if first is not None and _is_direct_answer(first):
                await self.unlist(sent.task.id)
                yield [Shown(first.version, first.event)]
                return
            del first
        sent = await in_full(self._follower, sent)
        yield [Shown(sent.version, apply_history_length(sent.task, configuration))]
        if is_terminal(sent.task.status.state) and not sent.ahead:
            return
        del configuration
        sent = replace(sent, task=Task(id=sent.task.id, context_id=sent.task.context_id))  # all that is asked of it now
        watch = TurnWatch(sent.ahead)
        async with aclosing(self.pages(sent.task.id, bell, sent.since, new=new)) as pages:
            async for page in pages:
                if page.restored:
                    sent = replace(sent, version=0)  # versions begin anew
                seen, ended = watch.read(page.entries, sent.task, behind=sent.version)
                del page
                yield seen
                del seen
                if ended:
                    _require_begun(watch, sent)
                    return

    async def unlist(self, task_id: str) -> None:
        """Take the task of a direct answer out of the lists of tasks: its client receives the message alone."""
        with suppress(StoreUnavailable):
            await self._follower.store.run(unlist_task(self._follower.keys, task_id))

    async def stopped(self, task_id: str, bell: Bell, version: int, within: float) -> None:
        """Returns when the task has ended or paused behind `version`, or after `within` seconds."""
        with suppress(TimeoutError):
            entries = self.entries(task_id, bell, version, whole=False)
            async with self._clock.timeout(within), aclosing(entries):
                async for entry in entries:
                    if TurnWatch().ends_with(entry):
                        return

    async def _first_word(self, sent: Sent, bell: Bell) -> LogEntry | None:
        """The first entry of the run, or None if it takes longer than the hold: then the client gets a task."""
        until = self._clock.monotonic() + self._hold
        while (left := until - self._clock.monotonic()) > 0:
            page = await self._follower.store.run(read_log(self._follower.keys, sent.task.id, sent.since, limit=1))
            if page.entries:
                return page.entries[0]
            await bell.wait(left)
        return None

    async def _answer_that_ended(self, sent: Sent) -> Message | None:
        page = await self._follower.store.run(read_log(self._follower.keys, sent.task.id, sent.since, limit=1))
        if sent.is_first and page.entries and _is_direct_answer(page.entries[0]):
            assert isinstance(page.entries[0].event, Message)
            return page.entries[0].event
        return None

    def entries(self, task_id: str, bell: Bell, after: int, *, whole: bool = True) -> AsyncGenerator[LogEntry, None]:
        """The entries of a log behind version `after`, see `follow`."""
        return entries_of(self.pages(task_id, bell, after, whole=whole))

    def pages(
        self, task_id: str, bell: Bell, after: int, *, new: bool = False, whole: bool = True
    ) -> AsyncGenerator[LogPage, None]:
        """The pages of a log behind version `after`, see `follow`."""
        follower, seen = self._follower, self._metrics.lag()
        return follow(follower.store, follower.keys, bell, task_id, after, new=new, whole=whole, seen=seen)


def _is_direct_answer(entry: LogEntry) -> bool:
    """Whether the agent's first word was a message alone: entry 2, right behind the task itself."""
    return entry.version == 2 and kind_of(entry.event) is EventKind.ANSWER


def _require_begun(watch: TurnWatch, sent: Sent) -> None:
    """Raises UnsupportedOperationError when the task has ended before a message that waited had its turn."""
    if watch.waits:
        raise UnsupportedOperationError(
            "The task ended before this message had its turn: send it without a task id, with this task in "
            "referenceTaskIds",
            data={"taskId": sent.task.id},
        )
