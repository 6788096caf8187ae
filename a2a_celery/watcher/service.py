"""The watcher as a service: its loops, in the order in which they start, and stop in reverse."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path

from celery import Celery

from ..archive import open_archive
from ..config import Settings
from ..dispatch import Publisher
from ..loops import new_loop
from ..push import Poster
from ..sealing import Sealer, sealer_of
from ..store import AsyncStore, Keys
from ..store.blobs import blobs_of
from ..store.start_check import check_store
from ..store.wake import WakeLine
from ..telemetry.logs import about
from ..telemetry.names import Action
from .archiver import Archiver
from .blobs import BlobRemover
from .canvases import CanvasEnder
from .deliverer import Deliverer
from .dispatcher import Dispatcher
from .figures import WatcherFigures
from .loops import Loop, Role
from .pauses import PauseEnder
from .presence import Presence
from .recoverer import Recoverer
from .results import Results

logger = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two attempts to reach a store that is unavailable at the start."""


class Watcher:
    """All roles of a watcher in one process."""

    def __init__(self, settings: Settings, publisher: Publisher, app: Celery) -> None:
        self.figures = WatcherFigures()
        self._settings = settings
        self._app = app
        self._publisher = publisher

    async def run(self, until: asyncio.Event, alive_file: Path | None = None) -> None:
        """Watches until `until` is set; touches `alive_file` every few seconds, as long as it reaches the store.

        Raises:
            ConfigError: the store has another schema, the secret key does not open the webhooks there are, or nothing
                says where large parts are.
        """
        blobs = blobs_of(self._settings)
        store = AsyncStore(self._settings.store_url, blobs)
        keys = Keys(self._settings.key_prefix)
        sealer = sealer_of(self._settings)
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
        again, report_interval = self._settings.redispatch_after, self._settings.lease_ttl / 3
        roles: list[Role] = [
            Recoverer(store, keys, self._settings.lease_ttl / 2, self._publisher),
            Dispatcher(store, keys, self._publisher, again, results, self.figures, overtaken_after=report_interval),
            PauseEnder(store, keys),
            CanvasEnder(store, keys, results),
            Presence(store, keys, self._settings, alive_file),
        ]
        if blobs is not None:
            roles.append(BlobRemover(store, keys, blobs, self.figures))
        if archive is not None:
            roles.append(Archiver(store, keys, archive, self._settings.archive_retention, self.figures))
        deliverer, line = self._deliverer(store, keys, sealer), WakeLine(self._settings.store_url)
        loops = [Loop(role, figures=self.figures) for role in roles]
        if deliverer is not None:
            loops.append(Loop(deliverer, line.listen(keys.deliveries_wake), self.figures))
        for loop in loops:
            loop.start()
        said = about(Action.WATCHER_STARTED)
        logger.info("watching: %s", ", ".join(loop.role.name for loop in loops), extra=said)
        try:
            await until.wait()
        finally:
            for loop in reversed(loops):
                await loop.stop()
            if deliverer is not None:
                await deliverer.aclose()
            if archive is not None:
                await archive.aclose()
            await line.stop()
            await store.aclose()

    async def _wait_for_store(self, store: AsyncStore, keys: Keys, sealer: Sealer | None, until: asyncio.Event) -> bool:
        """Return True when the store is available, or False when `until` is set before."""
        report = True
        while not await check_store(store, keys, self._settings, sealer, report=report):
            report = False
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), POLL_INTERVAL)
                return False
        return True

    def _deliverer(self, store: AsyncStore, keys: Keys, sealer: Sealer | None) -> Deliverer | None:
        """None without `secret_key`: then nobody can have set a webhook."""
        if sealer is None:
            return None
        poster = Poster(self._settings.push_networks)
        keys_of_secrets, lease = self._settings.secret_keys, self._settings.lease_ttl
        return Deliverer(store, keys, sealer, poster, keys_of_secrets, lease, figures=self.figures)

    def run_until_signalled(self, alive_file: Path | None = None) -> None:
        """Watches until SIGTERM or SIGINT. See `run`."""

        async def main() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await self.run(stop, alive_file)

        with asyncio.Runner(loop_factory=lambda: new_loop(uvloop=self._settings.uvloop)) as runner:
            runner.run(main())
