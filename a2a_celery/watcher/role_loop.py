"""Loop that runs a watcher role, and the roles for the heartbeat and for jumps of the store's clock.

A failed tick is logged, and the next tick follows as usual.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..crypto.sealing import sealer_of
from ..errors import StoreUnavailable
from ..push import format_public_key, parse_private_key
from ..settings import Settings, visible_settings
from ..settings.urls import archive_place
from ..store import AsyncStore, Keys
from ..store.admin.schema import SCHEMA
from ..store.admin.start_check import ClockReading, correct_due_times, read_clock, record_heartbeat
from ..store.log.pubsub import LogSignal
from ..telemetry.logs import about
from ..telemetry.names import Action
from ..telemetry.versions import versions
from .metrics import WatcherMetrics

logger = logging.getLogger(__name__)

MIN_TICK_INTERVAL = 0.02
"""Minimum number of seconds between two ticks, even if the role is notified more often."""

WITHDRAWAL_TIMEOUT = 1.0
"""Seconds that the store has to delete the heartbeat when the watcher stops."""


class Role(Protocol):
    """Watcher role: work that a watcher performs periodically."""

    name: str
    every: float
    """Seconds between two ticks. A notification starts the next tick earlier."""

    async def tick(self) -> None:
        """Perform all work that is due."""
        ...


class RoleLoop:
    """Loop that calls `role.tick` periodically. A notification from `subscription` starts the next tick immediately."""

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
        """Start the loop on the running event loop."""
        self._metrics.declare_role(self.role.name)
        self._task = asyncio.create_task(self._run(), name=f"a2a-{self.role.name}")

    async def stop(self) -> None:
        """Stop the loop. A tick in progress is cancelled, which is safe at any time."""
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


class Heartbeat:
    """Watcher role that writes a heartbeat to the store. After each successful write, `alive_file` is touched."""

    name = "heartbeat"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, settings: Settings, alive_file: Path | None = None) -> None:
        self._store = store
        self._keys = keys
        self._alive_file = alive_file
        sealer = sealer_of(settings.secret_keys)
        heartbeat = {
            "watcher": f"{socket.gethostname()}:{os.getpid()}",
            "schema": SCHEMA,
            "archive": archive_place(settings.archive_url),
            "settings": visible_settings(settings),
            "secrets": sorted(sealer.fingerprints) if sealer is not None else [],  # fingerprints reveal no secrets
            "signing_keys": [format_public_key(parse_private_key(key)) for key in settings.webhook_private_keys[:1]],
            "versions": versions(),
        }
        self._has_archive = settings.archive_url is not None
        self._heartbeat = json.dumps(heartbeat, sort_keys=True)

    async def tick(self) -> None:
        """Write the heartbeat."""
        heartbeat = record_heartbeat(self._keys, self._heartbeat, schema=SCHEMA, archives=self._has_archive)
        await self._store.run(heartbeat)
        if self._alive_file is not None:
            self._alive_file.touch()

    async def withdraw(self) -> None:
        """Delete the heartbeat, so that the stopped watcher is no longer listed. If the store does not reply, the
        heartbeat expires."""
        withdrawal = record_heartbeat(
            self._keys, self._heartbeat, schema=SCHEMA, archives=self._has_archive, withdraws=True
        )
        with suppress(StoreUnavailable, TimeoutError):
            await asyncio.wait_for(self._store.run(withdrawal), WITHDRAWAL_TIMEOUT)


MAX_ERROR = 1.0
"""Seconds by which two clocks may drift apart between two readings. A greater difference is treated as a jump."""


class StoreClock:
    """Watcher role that detects jumps of the store's clock and corrects the stored times. Each jump is
    corrected by only one watcher."""

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
        """Latest time, in µs, that the store's clock can show now unless it has jumped. 0 before the first tick."""
        if self._reading is None:
            return 0
        return self._reading.time_us + int((self._clock.boottime() - self._asked_at + MAX_ERROR) * 1_000_000)

    async def tick(self) -> None:
        """Read the store's clock. If the clock has jumped, correct the stored times."""
        asked_at = self._clock.boottime()
        reading = await self._store.run(read_clock(self._keys))
        answered_at = self._clock.boottime()
        last = self._reading
        if last is not None and reading.corrections == last.corrections:
            shortest, longest = asked_at - self._answered_at, answered_at - self._asked_at
            elapsed_seconds = (reading.time_us - last.time_us) / 1_000_000
            jump = elapsed_seconds - min(max(elapsed_seconds, shortest), longest)
            if abs(jump) > MAX_ERROR:
                reading = await self._correct(jump, reading)
                asked_at = answered_at = self._clock.boottime()
        self._reading, self._asked_at, self._answered_at = reading, asked_at, answered_at

    async def _correct(self, jump: float, reading: ClockReading) -> ClockReading:
        logger.warning(
            "the store's clock jumped %.1f s %s; leases are renewed, and times that were stored before are corrected",
            abs(jump),
            "forward" if jump > 0 else "backward",
            extra=about(Action.STORE_CLOCK_JUMPED, seconds=round(jump, 1)),
        )
        correction = correct_due_times(
            self._keys, int(jump * 1_000_000), corrections=reading.corrections, lease_us=self.lease_us
        )
        return await self._store.run(correction)
