"""Follow a task's log: yield every entry after a version, in order, when it is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

from a2a.types import TaskStatusUpdateEvent

from ...lifecycle import EventId, LogEntry
from ..client.connection import AsyncStore, run_with_retry
from ..keys import Keys
from ..tasks.commands import ReplyChannel, read_task
from .pages import LogPage, read_log
from .pubsub import LogSignal, PubSubListener


async def follow(
    store: AsyncStore,
    keys: Keys,
    signal: LogSignal,
    task_id: str,
    after: EventId,
    *,
    new: bool = False,
    resolve_blobs: bool = True,
    seen: Callable[[LogPage], None] | None = None,
) -> AsyncGenerator[LogPage, None]:
    """Yield the pages of a log after the event `after`, without gaps and repeats, until the task does not exist.

    A page is empty if a poll finds no new entry; polls are at most `POLL_INTERVAL` seconds apart. A slow reader holds
    one page in memory and does not delay other readers.

    If a restored store has lost entries that were read, a page with `restored` has the complete task and its status.
    Both have the id of the task's newest event, whose version may be lower than that of `after`.

    Args:
        signal: signal that listens already.
        new: True if `after` was written while `signal` listened, so that the log need not be read first.
        resolve_blobs: False to leave blob references unresolved.
        seen: called with each page before it is yielded.
    """
    if new:
        await signal.wait(after=after.version)
    while True:
        page = signal.page(after)
        if page is None:
            page = await run_with_retry(store, read_log(keys, task_id, after, resolve_blobs=resolve_blobs))
        if page.restored:
            page = await _restored_page(store, keys, task_id, page, resolve_blobs=resolve_blobs)
        if page.version == 0:
            return
        if page.entries:
            after = page.entries[-1].id
        if seen is not None:
            seen(page)
        all_read = page.version <= after.version
        yield page
        del page
        if all_read:
            await signal.wait(after=after.version)


async def _restored_page(store: AsyncStore, keys: Keys, task_id: str, page: LogPage, *, resolve_blobs: bool) -> LogPage:
    """Return a page with the complete task and its status, from which a reader starts over."""
    found = await run_with_retry(store, read_task(keys, None, task_id, resolve_blobs=resolve_blobs))
    if found is None:
        return LogPage([], 0, page.state, running=False)
    task, newest = found
    status = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)
    entries = [LogEntry(*newest, task), LogEntry(*newest, status)]
    return LogPage(entries, newest.version, task.status.state, page.running, restored=True)


class LogFollower:
    """Log reader of one process: a store, its keys and its pub/sub listener."""

    def __init__(self, store: AsyncStore, keys: Keys, listener: PubSubListener) -> None:
        self.store = store
        self.keys = keys
        self.listener = listener
        self._reply_channel = keys.reply_channel(uuid4().hex)

    def reply_channel(self, *, final_only: bool) -> ReplyChannel:
        """Return the reply channel of this process. With `final_only`, it receives final states only."""
        return ReplyChannel(self._reply_channel, final_only)

    def listen(
        self, task_id: str, reply_channel: ReplyChannel | None = None, *, final_only: bool = False
    ) -> AbstractAsyncContextManager[LogSignal]:
        """Return a signal that new log entries of `task_id` notify, or final states only with `final_only`.

        Listen before reading the log. A task created with the reply channel `reply_channel` needs no round trip.
        """
        return self.listener.listen(
            self.keys.task(task_id).notifications,
            through=reply_channel.channel if reply_channel else "",
            final_only=final_only,
        )

    async def pages(self, task_id: str, after: EventId) -> AsyncGenerator[LogPage, None]:
        """Yield the pages of `follow` that have entries, with a separate signal."""
        async with self.listen(task_id) as signal:
            async for page in follow(self.store, self.keys, signal, task_id, after):
                if page.entries:
                    yield page
