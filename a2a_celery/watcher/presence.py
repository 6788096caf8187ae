"""Says that there is a watcher, and how it is set up: for ``celery a2a doctor``."""

from __future__ import annotations

import json
import os
import socket

from ..config import Settings, shown
from ..sealing import sealer_of
from ..store import AsyncStore, Keys
from ..store.installation import note_watcher


class Presence:
    """One word in the store."""

    name = "presence"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, settings: Settings) -> None:
        self._store = store
        self._keys = keys
        sealer = sealer_of(settings)
        said = {
            "watcher": f"{socket.gethostname()}:{os.getpid()}",
            "settings": shown(settings),
            "secrets": sorted(sealer.fingerprints) if sealer is not None else [],  # says nothing about the secrets
        }
        self._said = json.dumps(said, sort_keys=True)

    async def tick(self) -> None:
        """Says it."""
        await self._store.run(note_watcher(self._keys, self._said))
