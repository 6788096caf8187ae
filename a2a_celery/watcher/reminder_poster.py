"""Reminders of questions that clients have not answered."""

from __future__ import annotations

import logging

from ..store import AsyncStore, Keys
from ..store.runs.reminders import post_reminders

logger = logging.getLogger(__name__)

REMINDER_BATCH = 100
"""Maximum number of reminders that one script call posts."""


class ReminderPoster:
    """Watcher role that repeats questions whose reminders are due. Each reminder is posted by only one watcher."""

    name = "reminder poster"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def tick(self) -> None:
        """Post all due reminders."""
        while reminder_count := await self._store.run(post_reminders(self._keys, limit=REMINDER_BATCH)):
            logger.info("%d reminders of questions were posted", reminder_count)
