"""The store's clock as a watcher expects it. After a jump, the times that were stored before are corrected.

Leases, pauses and due times are times of the store's clock. The clock jumps when it is set, or when a replica on a
machine with another time is promoted. A jump is a difference that the watcher's boot time clock does not explain. That
clock counts the time that the host was suspended. The watcher's wall clock says nothing: it is set too, and with the
store's where both run on one machine.
"""

from __future__ import annotations

import logging

from ..clock import SYSTEM_CLOCK, Clock
from ..store import AsyncStore, Keys
from ..store.admin.installation import ClockReading, correct_due_times, read_clock
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

MAX_ERROR = 1.0
"""Seconds by which two clocks may run apart between two readings; a greater difference is a jump."""


class StoreClock:
    """A comparison of the store's clock with this process's. Of the watchers that notice a jump, one corrects it."""

    name = "store clock"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys, lease_ttl: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.lease_us = int(lease_ttl * 1_000_000)
        self._store = store
        self._keys = keys
        self._clock = clock
        self._reading: ClockReading | None = None
        self._asked_at = self._answered_at = 0.0

    @property
    def latest_us(self) -> int:
        """The latest time in µs that the store's clock can show now, unless it jumped; 0 before the first tick."""
        if self._reading is None:
            return 0
        return self._reading.time_us + int((self._clock.boottime() - self._asked_at + MAX_ERROR) * 1_000_000)

    async def tick(self) -> None:
        """Read the store's clock, and correct a jump."""
        asked_at = self._clock.boottime()
        reading = await self._store.run(read_clock(self._keys))
        answered_at = self._clock.boottime()
        last = self._reading
        if last is not None and reading.corrections == last.corrections:
            shortest, longest = asked_at - self._answered_at, answered_at - self._asked_at
            elapsed = (reading.time_us - last.time_us) / 1_000_000
            jump = elapsed - min(max(elapsed, shortest), longest)
            if abs(jump) > MAX_ERROR:
                reading = await self._correct(jump, reading)
                asked_at = answered_at = self._clock.boottime()
        self._reading, self._asked_at, self._answered_at = reading, asked_at, answered_at

    async def _correct(self, jump: float, reading: ClockReading) -> ClockReading:
        logger.warning(
            "the store's clock jumped %.1f s %s; leases begin anew, and times that were stored before are corrected",
            abs(jump),
            "forward" if jump > 0 else "backward",
            extra=about(Action.STORE_CLOCK_JUMPED, seconds=round(jump, 1)),
        )
        correction = correct_due_times(
            self._keys, int(jump * 1_000_000), corrections=reading.corrections, lease_us=self.lease_us
        )
        return await self._store.run(correction)
