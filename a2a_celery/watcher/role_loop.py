"""Loop that ticks one role of a watcher. A failed tick is logged, and the next tick follows as usual."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..store.log.pubsub import LogSignal
from ..telemetry.logs import about
from ..telemetry.names import Action
from .metrics import WatcherMetrics

logger = logging.getLogger(__name__)

MIN_TICK_INTERVAL = 0.02
"""Minimum seconds between two ticks, however often the role is notified."""


class Role(Protocol):
    """Periodic duty of a watcher."""

    name: str
    every: float
    """Seconds between two ticks. A notification starts the next tick earlier."""

    async def tick(self) -> None:
        """Do the work that is due."""
        ...


class RoleLoop:
    """Loop that ticks `role` until it is stopped. A notification from `subscription` starts the next tick at once."""

    def __init__(
        self,
        role: Role,
        subscription: AbstractAsyncContextManager[LogSignal] | None = None,
        metrics: WatcherMetrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.role = role
        self._subscription = subscription or nullcontext(LogSignal())
        self._metrics = metrics or WatcherMetrics()
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop in the running event loop."""
        self._task = asyncio.create_task(self._run(), name=f"a2a-{self.role.name}")

    async def stop(self) -> None:
        """Stop the loop. A tick in progress is cancelled, which is safe at any point."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        async with self._subscription as notification:
            while True:
                try:
                    await self.role.tick()
                    self._metrics.record_tick(self.role.name, "ok")
                except Exception as e:
                    self._metrics.record_tick(self.role.name, "failed")
                    fields = about(Action.TICK_FAILED, role=self.role.name)
                    logger.warning("%s: a tick failed and is retried: %s", self.role.name, e, extra=fields)
                await self._clock.sleep(MIN_TICK_INTERVAL)
                with suppress(TimeoutError):
                    async with self._clock.timeout(self.role.every - MIN_TICK_INTERVAL):
                        await notification.wait(None)
