"""Watcher process. The loops of its roles are started in order and stopped in reverse order."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path

from celery import Celery

from ..archive import open_archive
from ..concurrency import new_loop
from ..crypto.sealing import Sealer, sealer_of
from ..dispatch import Publisher
from ..features.watcher import LOOPS, ROLES
from ..operations.publication import RunPublisher
from ..operations.service import TaskService
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.admin.start_check import check_store
from ..store.blobs.blob_store import blobs_of
from ..store.log.pubsub import PubSubListener
from ..telemetry.logs import about
from ..telemetry.names import Action
from .archiver import Archiver, BlobRemover
from .dispatcher import Dispatcher
from .metrics import WatcherMetrics
from .plain_tasks.canvas_finalizer import CanvasFinalizer
from .plain_tasks.result_listener import ResultListener
from .plain_tasks.results import Results
from .recoverer import PauseExpirer, Recoverer
from .revoke_listener import RevokeListener
from .role_loop import Heartbeat, Role, RoleLoop
from .sampler import Sampler

logger = logging.getLogger(__name__)

STORE_RETRY_INTERVAL = 1.0
"""Seconds between two attempts to reach a store that is unavailable when the watcher starts."""


class Watcher:
    """Watcher with all its roles in one process."""

    def __init__(self, settings: Settings, publisher: Publisher, app: Celery) -> None:
        self.metrics = WatcherMetrics()
        self._settings = settings
        self._app = app
        self._publisher = publisher

    async def run(self, until: asyncio.Event, alive_file: Path | None = None) -> None:
        """Run all roles until `until` is set.

        Args:
            until: Event that stops the watcher.
            alive_file: File to touch every few seconds while the store is available, or None.

        Raises:
            ConfigError: The store has a different schema, the secret key cannot decrypt stored data, or the
                object store of large parts is not configured.
        """
        blobs = blobs_of(self._settings)
        store = AsyncStore(self._settings.store_url, blobs, wait_replicas=self._settings.store_wait_replicas)
        keys, sealer = Keys(self._settings.key_prefix), sealer_of(self._settings.secret_keys)
        archive = open_archive(self._settings.archive_url) if self._settings.archive_url else None
        available = False
        try:
            available = await self._wait_for_store(store, keys, sealer, until)
        finally:
            if not available:
                await store.aclose()
        if not available:
            return
        results = Results(store, keys, self._app)
        heartbeat = Heartbeat(store, keys, self._settings, alive_file)
        runs = RunPublisher(self._publisher, store, keys, self._settings)
        service = TaskService({}, self._settings, store, keys, runs)
        roles = [*self.task_roles(store, keys, results), heartbeat]
        if self._settings.blob_url is not None:
            roles.append(BlobRemover(store, keys, blobs, self.metrics))
        if archive is not None:
            roles.append(Archiver(store, keys, archive, self._settings.archive_retention, self.metrics))
        notifications = PubSubListener(self._settings.store_url)
        loops = [
            RoleLoop(role, notifications.listen(role.channel) if role.channel else None, self.metrics)
            for role in (feature_role(service) for feature_role in ROLES)
        ]
        loops += [RoleLoop(role, metrics=self.metrics) for role in roles]
        loops += [loop for loops_of in LOOPS for loop in loops_of(service, self.metrics, notifications)]
        for loop in loops:
            loop.start()
        revokes, listener = RevokeListener(store, keys, self._app), ResultListener(results, self._app)
        revokes.start()
        listener.start()
        roles_text = ", ".join(loop.role.name for loop in loops)
        logger.info("watcher started with the roles: %s", roles_text, extra=about(Action.WATCHER_STARTED))
        try:
            await until.wait()
        finally:
            await listener.stop()
            await revokes.stop()
            for loop in reversed(loops):
                await loop.stop()
            if archive is not None:
                await archive.aclose()
            await notifications.stop()
            await heartbeat.withdraw()
            await store.aclose()
        logger.info("watcher stopped", extra=about(Action.WATCHER_STOPPED))

    async def _wait_for_store(self, store: AsyncStore, keys: Keys, sealer: Sealer | None, until: asyncio.Event) -> bool:
        """Wait until the store is available, and return True. Return False if `until` is set first.

        Each failed attempt counts as a failed tick of the heartbeat.
        """
        report = True
        self.metrics.declare_role(Heartbeat.name)
        while not await check_store(store, keys, self._settings, sealer, report=report):
            self.metrics.record_tick(Heartbeat.name, "failed")
            report = False
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), STORE_RETRY_INTERVAL)
                return False
        return True

    def task_roles(self, store: AsyncStore, keys: Keys, results: Results) -> list[Role]:
        """Return the roles that recover, publish and end runs, with the times of the settings."""
        settings = self._settings
        dispatcher = Dispatcher(
            store,
            keys,
            self._publisher,
            settings.redispatch_after,
            results,
            self.metrics,
            overtaken_after=settings.lease_ttl / 3,
        )
        return [
            Recoverer(store, keys, settings.lease_ttl, self._publisher),
            dispatcher,
            PauseExpirer(store, keys),
            CanvasFinalizer(store, keys, results),
            Sampler(store, keys),
        ]

    def run_until_signalled(self, alive_file: Path | None = None) -> None:
        """Run all roles until the process receives SIGTERM or SIGINT; see `run`."""

        async def main() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await self.run(stop, alive_file)

        with asyncio.Runner(loop_factory=lambda: new_loop(uvloop=self._settings.uvloop)) as runner:
            runner.run(main())
