"""Following a log: every entry after a version, in order, as it is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

from a2a.types import TaskStatusUpdateEvent

from ..lifecycle import LogEntry
from .connection import AsyncStore, patiently
from .keys import Keys
from .log import LogPage, read_log
from .tasks import Waker, read_task
from .wake import Bell, WakeLine


async def follow(
    store: AsyncStore,
    keys: Keys,
    bell: Bell,
    task_id: str,
    after: int,
    *,
    new: bool = False,
    whole: bool = True,
    seen: Callable[[LogPage], None] | None = None,
) -> AsyncGenerator[LogPage, None]:
    """Pages of `task_id`'s log behind version `after`, without a gap or a repeat; those that a ring has brought are not
    read. An empty one: nothing is new, as was seen by a look, of which there is one every `wake.LOOK_EVERY` seconds at
    least.

    `bell` must be listening already; `new` says that `after` was written since then, so that whatever follows rings.
    Entries that are not `whole` are for no one to see. `seen` is called with each page before it is given.

    Ends when the task is gone; else it goes on until the reader leaves: what ends a stream is the reader's to say.

    A reader that is slow holds one page; it slows nobody.

    If the store comes back without entries that were read, a page that is `restored` has the task as a whole, and its
    status with the same version, which may be a lower one.
    """
    recorded_us: int | None = None
    if new:
        await bell.wait(behind=after)
    while True:
        page = bell.page(after)
        if page is None:
            page = await patiently(store, read_log(keys, task_id, after, whole=whole, recorded_us=recorded_us))
        if page.restored:
            page = await _restored_page(store, keys, task_id, page, whole=whole)
        if page.version == 0:
            return
        if page.entries:
            after = page.entries[-1].version
            recorded_us = None if page.restored else page.entries[-1].recorded_us
        if seen is not None:
            seen(page)
        all_read = page.version <= after
        yield page
        del page
        if all_read:
            await bell.wait(behind=after)


async def _restored_page(store: AsyncStore, keys: Keys, task_id: str, page: LogPage, *, whole: bool) -> LogPage:
    """Return the page that tells a reader to begin anew: the task as a whole, and its status for who waits for that."""
    found = await patiently(store, read_task(keys, None, task_id, whole=whole))
    if found is None:
        return LogPage([], 0, page.state, running=False)
    task, version = found
    at = task.status.timestamp.ToMicroseconds()
    status = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)
    entries = [LogEntry(version, at, task), LogEntry(version, at, status)]
    return LogPage(entries, version, task.status.state, page.running, restored=True)


class LogFollower:
    """Opens logs for one process: a store, its keys and its wake line."""

    def __init__(self, store: AsyncStore, keys: Keys, line: WakeLine) -> None:
        self.store = store
        self.keys = keys
        self.line = line
        self._waker = keys.waker(uuid4().hex)

    def waker(self, *, stops: bool) -> Waker:
        """For tasks that this process makes and follows, or waits for their `stops` alone."""
        return Waker(self._waker, stops)

    def listen(
        self, task_id: str, waker: Waker | None = None, *, stops: bool = False
    ) -> AbstractAsyncContextManager[Bell]:
        """A bell for `task_id`. Listen first: what is written to its log from there on rings; with `stops`, what ends
        or pauses it. For a task that will be made with a `waker` that costs no round trip."""
        return self.line.listen(self.keys.task(task_id).wake, through=waker.channel if waker else "", stops=stops)

    async def pages(self, task_id: str, after: int) -> AsyncGenerator[LogPage, None]:
        """`follow`, with a bell of its own; never an empty one."""
        async with self.listen(task_id) as bell:
            async for page in follow(self.store, self.keys, bell, task_id, after):
                if page.entries:
                    yield page
