"""Role that ends the tasks whose canvases have ended. The tasks of a canvas may run on any worker."""

from __future__ import annotations

import logging

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import Canvas
from ...errors import StoreUnavailable
from ...store import AsyncStore, Keys
from ...store.runs.release import due_canvases
from ...telemetry.logs import RepeatedErrors
from .results import Results

logger = logging.getLogger(__name__)

CANVAS_BATCH = 100
CANVAS_POLL_INTERVAL_US = 1_000_000


class CanvasFinalizer:
    """Watcher role that ends the tasks whose canvases have ended. Each task is ended by only one watcher."""

    name = "canvas finalizer"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys, results: Results, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._results = results
        self._errors = RepeatedErrors(clock)

    async def tick(self) -> None:
        """Poll the due canvases, and end the tasks whose canvas has ended."""
        for ref, canvas in await self._store.run(
            due_canvases(self._keys, limit=CANVAS_BATCH, delay_us=CANVAS_POLL_INTERVAL_US)
        ):
            try:
                await self._results.end(ref, Canvas.from_json(canvas))
            except StoreUnavailable:
                raise
            except Exception as e:  # the canvas must not block the following ones
                if self._errors.is_new(e):
                    logger.exception("could not read the canvas of run %s, retrying", ref.name)
