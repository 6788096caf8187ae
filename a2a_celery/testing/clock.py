"""Clock for simulations, which runs like the clock of the machine but can be moved forward by a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock


class SimulatedClock(Clock):
    """Clock that a test can move ahead of the machine's clock.

    Sleeps and timeouts belong to the event loop of the test. Any thread may read the time.

    Attributes:
        offset: Seconds by which the clock is ahead of the machine's clock.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._moved = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()

    @property
    def offset_us(self) -> int:
        """Offset in whole microseconds."""
        return round(self.offset * 1_000_000)

    def monotonic(self) -> float:
        """Return the seconds since an unspecified time."""
        return SYSTEM_CLOCK.monotonic() + self.offset

    def boottime(self) -> float:
        """Return the seconds since an unspecified time, including the time for which the host was suspended."""
        return SYSTEM_CLOCK.boottime() + self.offset

    def time(self) -> float:
        """Return the seconds since 1970."""
        return SYSTEM_CLOCK.time() + self.offset

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock."""
        ends_at = self.monotonic() + seconds
        await asyncio.sleep(0)
        while (remaining := ends_at - self.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), remaining)

    def timeout(self, seconds: float | None) -> Any:
        """Return a context manager that raises TimeoutError when the clock has reached the time `seconds` from now.
        None means no limit."""
        return self._limit_time(seconds)

    @asynccontextmanager
    async def _limit_time(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield limit
            finally:
                self._limits.discard(limit)

    def move(self, seconds: float) -> None:
        """Move the clock forward. Sleeps and timeouts that are due end at the next await.

        `AgentTester.advance` calls this method and then lets the agents continue.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds = {seconds!r}: a clock moves forward only")
        self.offset += seconds
        for limit in tuple(self._limits):
            ends_at = limit.when()
            if ends_at is not None and not limit.expired():
                limit.reschedule(ends_at - seconds)
        self._moved.set()
        self._moved = asyncio.Event()
