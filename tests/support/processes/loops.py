"""Event loop in a thread, and a counter of event loop iterations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from threading import Thread


@contextmanager
def run_in_thread(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.AbstractEventLoop]:
    """Run `loop` in a thread, as a worker process does, while the block runs. Then close `loop`."""
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class TurnCount:
    """Counter of event loop iterations, which a test may reset."""

    turns: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[TurnCount]:
    """Count the iterations of the running event loop while the block runs."""
    count = TurnCount()

    async def count_turns() -> None:
        while True:
            count.turns += 1
            await asyncio.sleep(0)

    count_task = asyncio.create_task(count_turns())
    try:
        yield count
    finally:
        count_task.cancel()
