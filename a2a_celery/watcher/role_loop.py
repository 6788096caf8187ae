"""Loop that runs a watcher role, and the role for the heartbeat.

A failed tick is logged, and the next tick follows as usual.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..crypto.sealing import sealer_of
from ..errors import StoreUnavailable
from ..push import format_public_key, parse_private_key
from ..settings import Settings, visible_settings
from ..settings.urls import url_address
from ..store import AsyncStore, Keys
from ..store.admin.schema import SCHEMA
from ..store.admin.start_check import announce_watcher
from ..store.log.pubsub import Wakeup
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
    """Loop that calls `role.tick` periodically. A notification from `subscription` starts the next tick immediately.
    `on_stop` is called after the last tick."""

    def __init__(
        self,
        role: Role,
        subscription: AbstractAsyncContextManager[Wakeup] | None = None,
        metrics: WatcherMetrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.role = role
        self._subscription = subscription or nullcontext(Wakeup())
        self._metrics = metrics or WatcherMetrics()
        self._clock = clock
        self._on_stop = on_stop
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
        if self._on_stop is not None:
            await self._on_stop()

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
            "archive": url_address(settings.archive_url),
            "settings": visible_settings(settings),
            "secrets": sorted(sealer.fingerprints) if sealer is not None else [],  # fingerprints reveal no secrets
            "signing_keys": [format_public_key(parse_private_key(key)) for key in settings.webhook_private_keys[:1]],
            "versions": versions(),
        }
        self._has_archive = settings.archive_url is not None
        self._heartbeat = json.dumps(heartbeat, sort_keys=True)

    async def tick(self) -> None:
        """Write the heartbeat."""
        heartbeat = announce_watcher(self._keys, self._heartbeat, archives=self._has_archive)
        await self._store.run(heartbeat)
        if self._alive_file is not None:
            self._alive_file.touch()

    async def withdraw(self) -> None:
        """Delete the heartbeat, so that the stopped watcher is no longer listed. If the store does not reply, the
        heartbeat expires."""
        withdrawal = announce_watcher(self._keys, self._heartbeat, archives=self._has_archive, withdraws=True)
        with suppress(StoreUnavailable, TimeoutError):
            await asyncio.wait_for(self._store.run(withdrawal), WITHDRAWAL_TIMEOUT)
