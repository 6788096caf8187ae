"""The life of a loop: start, tick, stop; a tick that fails is logged, and the next one comes all the same."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..store.wake import Bell
from ..telemetry.logs import about
from ..telemetry.names import Action
from .figures import WatcherFigures

logger = logging.getLogger(__name__)

BREATH = 0.02
"""Seconds between two ticks at least, however often the bell is rung."""


class Role(Protocol):
    """One thing a watcher looks after."""

    name: str
    every: float
    """Seconds between two ticks, at most if there is a bell."""

    async def tick(self) -> None:
        """One look."""
        ...


class Loop:
    """Ticks a role until stopped; when the bell of `listening` rings, the next tick comes at once."""

    def __init__(
        self,
        role: Role,
        listening: AbstractAsyncContextManager[Bell] | None = None,
        figures: WatcherFigures | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.role = role
        self._listening = listening or nullcontext(Bell())
        self._figures = figures or WatcherFigures()
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, in the running event loop."""
        self._task = asyncio.create_task(self._run(), name=f"a2a-{self.role.name}")

    async def stop(self) -> None:
        """Ends, in the middle of a tick if need be: a tick can be cut off anywhere."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        async with self._listening as bell:
            while True:
                try:
                    await self.role.tick()
                    self._figures.ticked(self.role.name, "ok")
                except Exception as e:
                    self._figures.ticked(self.role.name, "failed")
                    said = about(Action.TICK_FAILED, role=self.role.name)
                    logger.warning("%s: a tick failed, trying again: %s", self.role.name, e, extra=said)
                await self._clock.sleep(BREATH)
                with suppress(TimeoutError):
                    async with self._clock.timeout(self.role.every - BREATH):
                        await bell.wait(None)
