"""Removes the blobs of tasks that are gone: expired, deleted, or never begun."""

from __future__ import annotations

import asyncio
import logging

from ..errors import BlobsUnavailable
from ..store import AsyncStore, Keys
from ..store.blob_tasks import blobs_removed, take_doomed
from ..store.blobs import Blobs
from .figures import WatcherFigures

logger = logging.getLogger(__name__)

BATCH = 20
"""Folders that one watcher removes at once."""


class BlobRemover:
    """Removes folders of the object store, those of tasks that the store says are gone."""

    name = "blobs"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, blobs: Blobs, figures: WatcherFigures | None = None) -> None:
        self._store = store
        self._keys = keys
        self._blobs = blobs
        self._figures = figures or WatcherFigures()

    async def tick(self) -> None:
        """All that is due; what can't be removed is tried again in five minutes."""
        tags = [""]
        removed = tags
        while tags and len(removed) == len(tags):  # a store that is away is left alone until the next look
            self._figures.goes_on(self.name)
            tags = await self._store.run(take_doomed(self._keys, limit=BATCH))
            done = await asyncio.gather(*map(self._removed, tags))
            removed = [tag for tag, is_done in zip(tags, done, strict=True) if is_done]
            if removed:
                await self._store.run(blobs_removed(self._keys, removed))
                self._figures.blobs_removed(len(removed))

    async def _removed(self, tag: str) -> bool:
        try:
            await self._blobs.remove(tag)
        except BlobsUnavailable as e:
            logger.warning("the blobs of task %s are not removed yet: %s", tag, e)
            return False
        return True
