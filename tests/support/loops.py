"""Event loops for tests of what runs beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from threading import Thread


@contextmanager
def in_thread(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.AbstractEventLoop]:
    """`loop`, which runs in a thread, as that of a worker's runs does; it is closed afterwards."""
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
    """Turns of an event loop since the count began or was last set to 0."""

    turns: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[TurnCount]:
    """Count the turns of the running event loop while the block lasts."""
    count = TurnCount()

    async def count_turns() -> None:
        while True:
            count.turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    try:
        yield count
    finally:
        counting.cancel()
