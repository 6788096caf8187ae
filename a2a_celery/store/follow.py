"""Following a log: every entry after a version, in order, as it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic

from ..errors import StoreUnavailable
from .connection import AsyncStore
from .keys import Keys
from .log import LogPage, read_log
from .operation import Operation
from .wake import Bell, WakeLine

STORE_PATIENCE = 30.0
"""Seconds a follower waits for a store that is away before it gives up."""

TRY_AGAIN_AFTER = 0.5


async def follow(
    store: AsyncStore, keys: Keys, bell: Bell, task_id: str, after: int, *, new: bool = False
) -> AsyncGenerator[LogPage, None]:
    """Pages of `task_id`'s log behind version `after`, without a gap or a repeat; never an empty one.

    `bell` must be connected to the task's wake channel already; `new` says that `after` was written since then, so that
    whatever follows rings. Ends when the task is gone; else it goes on until the reader leaves: what ends a stream is
    the reader's to say.

    A reader that is slow holds one page; it slows nobody.
    """
    if new:
        await bell.wait()
    while True:
        page = await _patiently(store, read_log(keys, task_id, after))
        if page.version == 0:
            return
        if page.entries:
            after = page.entries[-1].version
            yield page
        if page.version <= after:
            await bell.wait()


async def _patiently(store: AsyncStore, operation: Operation[LogPage]) -> LogPage:
    """What the log says, also when the store has just been restarted: who follows a task would rather wait.

    Raises:
        StoreUnavailable: it has been away for `STORE_PATIENCE` seconds.
    """
    until = monotonic() + STORE_PATIENCE
    while True:
        try:
            return await store.run(operation)
        except StoreUnavailable:
            if monotonic() > until:
                raise
        await asyncio.sleep(TRY_AGAIN_AFTER)


class LogFollower:
    """Opens logs for one process: a store, its keys and its wake line."""

    def __init__(self, store: AsyncStore, keys: Keys, line: WakeLine) -> None:
        self.store = store
        self.keys = keys
        self.line = line

    async def pages(self, task_id: str, after: int) -> AsyncGenerator[LogPage, None]:
        """`follow`, with a bell of its own."""
        async with self.line.listen(self.keys.task(task_id).wake) as bell:
            async for page in follow(self.store, self.keys, bell, task_id, after):
                yield page
