"""Following a turn: from the message that was accepted to the event that ends it for its client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

from a2a.types import Message, SendMessageConfiguration, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.task import apply_history_length

from ..lifecycle import EventKind, LogEntry, kind_of
from ..store.follow import LogFollower, follow
from ..store.log import read_log
from ..store.wake import Bell
from .intake import Sent
from .streams import Shown, TurnWatch, entries_of, shown


class TurnFollower:
    """Follows turns. `hold` is how long, in seconds, a new task is kept back for a direct answer; 0: not at all."""

    def __init__(self, follower: LogFollower, hold: float) -> None:
        self._follower = follower
        self._hold = hold

    async def end_of(self, sent: Sent, bell: Bell) -> Message | TaskStatus | None:
        """Waits for the end of the turn; gives the agent's direct answer, or the status that ended it, if one did."""
        watch = TurnWatch(sent.ahead)
        async with aclosing(self.entries(sent.task.id, bell, sent.version, new=sent.new)) as entries:
            async for entry in entries:
                if sent.new and _is_direct_answer(entry):
                    assert isinstance(entry.event, Message)
                    return entry.event
                if watch.ends_with(entry):
                    return entry.event.status if isinstance(entry.event, TaskStatusUpdateEvent) else None
        return None

    async def events_of(
        self, sent: Sent, bell: Bell, configuration: SendMessageConfiguration
    ) -> AsyncGenerator[Shown, None]:
        """The task and its events until the turn ends; or the agent's direct answer alone."""
        if sent.new and self._hold:
            first = await self._first_word(sent, bell)
            if first is not None and _is_direct_answer(first):
                yield Shown(first.version, first.event)
                return
        yield Shown(sent.version, apply_history_length(sent.task, configuration))
        watch = TurnWatch(sent.ahead)
        async with aclosing(self.entries(sent.task.id, bell, sent.version)) as entries:
            async for entry in entries:
                if one := shown(entry, sent.task.id, sent.task.context_id):
                    yield one
                if watch.ends_with(entry):
                    return

    async def _first_word(self, sent: Sent, bell: Bell) -> LogEntry | None:
        """The first entry of the run, or None if it takes longer than the hold: then the client gets a task."""
        until = monotonic() + self._hold
        while (left := until - monotonic()) > 0:
            page = await self._follower.store.run(read_log(self._follower.keys, sent.task.id, sent.version, limit=1))
            if page.entries:
                return page.entries[0]
            await bell.wait(left)
        return None

    def entries(self, task_id: str, bell: Bell, after: int, *, new: bool = False) -> AsyncGenerator[LogEntry, None]:
        """The entries of a log behind version `after`, see `follow`."""
        return entries_of(follow(self._follower.store, self._follower.keys, bell, task_id, after, new=new))


def _is_direct_answer(entry: LogEntry) -> bool:
    """Whether the agent's first word was a message alone: entry 2, right behind the task itself."""
    return entry.version == 2 and kind_of(entry.event) is EventKind.ANSWER
