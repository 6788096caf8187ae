"""Writer task of an event queue. The task exists only while there are events, and starts with a short delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

TURNS_TO_RETURN = 5
"""Turns of the event loop between the last line of an agent and `settle`: through its task and `Run`."""


class Writer:
    """Calls `write` while there are events, unless the run `is over`. `ended` receives each finished task.

    An agent's last event and its return are some iterations of the event loop apart. Written together they cost one
    round trip less and no task. No caller waits for these iterations, which take microseconds.
    """

    __slots__ = ("_called", "_context", "_ended", "_name", "_over", "_task", "_write")  # each run that waits has one

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
        self._context = copy_context()  # the run's, not its agent's
        self._called = False
        self._task: asyncio.Task[None] | None = None

    def call(self) -> None:
        """Request a write. A write in progress also writes the new events."""
        if not self._called:
            self._called = True
            self._begin(TURNS_TO_RETURN)

    async def stop(self) -> None:
        """Stop without writing the pending events."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def finish(self) -> asyncio.Task[None] | None:
        """Wait until no write is in progress. Return the last task, or None if it has been released."""
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait({task})
        return task

    def _begin(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if self._over():
            return
        if turns:
            loop.call_soon(self._begin, turns - 1, context=self._context)
            return
        self._task = loop.create_task(self._write_all(), name=self._name, context=self._context)
        self._task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Release a finished task, because an agent may be silent for long."""
        if self._task is task and not task.cancelled() and task.exception() is None:
            self._task = None
        self._ended(task)

    async def _write_all(self) -> None:
        await self._write()
        self._called = False
