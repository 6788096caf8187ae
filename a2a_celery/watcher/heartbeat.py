"""Heartbeat of a watcher and its configuration, for ``celery a2a doctor`` and for liveness probes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from ..crypto.sealing import sealer_of
from ..push import format_public_key, parse_private_key
from ..settings import Settings, visible_settings
from ..settings.urls import archive_place
from ..store import AsyncStore, Keys
from ..store.admin.installation import record_heartbeat
from ..store.admin.schema import SCHEMA
from ..telemetry.versions import versions


class Heartbeat:
    """Role that writes a heartbeat to the store, and touches `alive_file` after each successful write."""

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
            "secrets": sorted(sealer.fingerprints) if sealer is not None else [],  # reveals nothing about the secrets
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
