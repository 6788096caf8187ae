"""Says that there is a watcher, and how it is set up: for ``celery a2a doctor``, and for its host's probes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from ..config import Settings, shown
from ..databases import archive_place
from ..sealing import sealer_of
from ..store import AsyncStore, Keys
from ..store.installation import note_watcher
from ..store.schema import SCHEMA
from ..versions import versions


class Presence:
    """One word in the store; `alive_file` is touched whenever the store has heard it."""

    name = "presence"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, settings: Settings, alive_file: Path | None = None) -> None:
        self._store = store
        self._keys = keys
        self._alive_file = alive_file
        sealer = sealer_of(settings)
        said = {
            "watcher": f"{socket.gethostname()}:{os.getpid()}",
            "schema": SCHEMA,
            "archive": archive_place(settings.archive_url),
            "settings": shown(settings),
            "secrets": sorted(sealer.fingerprints) if sealer is not None else [],  # says nothing about the secrets
            "versions": versions(),
        }
        self._archives = settings.archive_url is not None
        self._said = json.dumps(said, sort_keys=True)

    async def tick(self) -> None:
        """Says it."""
        said = note_watcher(self._keys, self._said, schema=SCHEMA, archives=self._archives)
        await self._store.run(said)
        if self._alive_file is not None:
            self._alive_file.touch()
