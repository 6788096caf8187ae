"""Removal of the blobs of tasks that expired, were deleted or never started."""

from __future__ import annotations

import asyncio
import logging

from ..errors import BlobsUnavailable
from ..store import AsyncStore, Keys
from ..store.blobs.blob_store import Blobs
from ..store.blobs.cleanup import acquire_orphaned_blobs, forget_removed_blobs
from .metrics import WatcherMetrics

logger = logging.getLogger(__name__)

REMOVAL_BATCH = 20
"""Folders that one watcher removes concurrently."""


class BlobRemover:
    """Role that removes the folders of deleted tasks from the object store."""

    name = "blob remover"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, blobs: Blobs, metrics: WatcherMetrics | None = None) -> None:
        self._store = store
        self._keys = keys
        self._blobs = blobs
        self._metrics = metrics or WatcherMetrics()

    async def tick(self) -> None:
        """Remove all folders that are due. A removal that fails is retried in five minutes."""
        folders = [""]
        removed = folders
        while folders and len(removed) == len(folders):  # an object store that fails is left alone until the next tick
            self._metrics.record_progress(self.name)
            folders = await self._store.run(acquire_orphaned_blobs(self._keys, limit=REMOVAL_BATCH))
            results = await asyncio.gather(*map(self._remove, folders))
            removed = [folder for folder, is_removed in zip(folders, results, strict=True) if is_removed]
            if removed:
                await self._store.run(forget_removed_blobs(self._keys, removed))
                self._metrics.count_blob_removals(len(removed))

    async def _remove(self, folder: str) -> bool:
        try:
            await self._blobs.remove(folder)
        except BlobsUnavailable as e:
            logger.warning("could not remove the blobs of task %s, retrying: %s", folder, e)
            return False
        return True
