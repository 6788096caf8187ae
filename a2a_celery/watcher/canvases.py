"""Ends tasks that were left to a canvas: when its result is there, it becomes their artifact, and their end."""

from __future__ import annotations

import logging

from ..dispatch import Canvas
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.release import due_canvases
from .results import Results

logger = logging.getLogger(__name__)

BATCH = 100
LOOK_AGAIN_US = 1_000_000


class CanvasEnder:
    """One look at the canvases that are under way; each is ended once, however many watchers look."""

    name = "canvases"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys, results: Results) -> None:
        self._store = store
        self._keys = keys
        self._results = results

    async def tick(self) -> None:
        """Ends what has ended."""
        for due in await self._store.run(due_canvases(self._keys, limit=BATCH, again_us=LOOK_AGAIN_US)):
            try:
                await self._results.end(due.ref, Canvas.from_json(due.canvas))
            except StoreUnavailable:
                raise
            except Exception:  # it stands before others every time
                logger.exception("the canvas of run %s can't be looked at; trying again", due.ref.name)
