"""Ends pauses that nobody answers: a client that went away leaves a FAILED task, not one that waits for ever."""

from __future__ import annotations

import logging

from ..store import AsyncStore, Keys
from ..store.pauses import end_pauses
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

BATCH = 100


class PauseEnder:
    """One look at the pauses that are over; each is ended once, however many watchers look."""

    name = "pauses"
    every = 1.0

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def tick(self) -> None:
        """Ends what is due."""
        while ended := await self._store.run(end_pauses(self._keys, limit=BATCH)):
            said = about(Action.PAUSES_ENDED, tasks=ended)
            logger.info("%d tasks waited too long for their clients", ended, extra=said)
