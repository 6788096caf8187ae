"""The store as one run sees it: away for a while now and then, and somebody else's business once the run is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from a2a.types import Task

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import BlobsUnavailable, StoreUnavailable
from ..flag import Flag
from ..store import AsyncStore, Keys, Operation
from ..store.connection import TRY_AGAIN_AFTER
from ..store.runs import Behind, Claim, Dropped, RunLost
from ..store.tasks import read_task

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOB_PATIENCE = 30.0
"""Seconds for which a run asks an object store again that is away. Without its parts nothing of it can go on."""


class RunStore:
    """The store, for the run of `claim`; `lost` is set when the run is not this worker's any more."""

    def __init__(self, store: AsyncStore, keys: Keys, claim: Claim, clock: Clock = SYSTEM_CLOCK) -> None:
        self.keys = keys
        self.lost = Flag()
        self._store = store
        self._claim = claim
        self._clock = clock

    async def run(self, operation: Operation[T]) -> T | RunLost:
        """What the operation gives, whenever the store is there for it; RunLost if the run was lost meanwhile.

        Raises:
            BlobsUnavailable: the object store has been away for `BLOB_PATIENCE` seconds.
        """
        until: float | None = None
        while True:
            try:
                answer = await self._store.run(operation)
                if isinstance(answer, RunLost) and answer.missing:
                    text = "run %s is lost: the store lost %d confirmed events of it: was it restored from older data?"
                    logger.error(text, self._claim.ref.name, answer.missing)
                return answer
            except StoreUnavailable as e:
                if self.lost.is_set():
                    return RunLost()
                if isinstance(e, BlobsUnavailable):
                    until = until or self._clock.monotonic() + BLOB_PATIENCE
                    if self._clock.monotonic() > until:
                        raise
                logger.warning("run %s: a write waits for the store: %s", self._claim.ref.name, e)
                await self._clock.sleep(TRY_AGAIN_AFTER)

    async def in_full(self, claim: Claim, again: Callable[[], Operation[Claim | Dropped | Behind]]) -> Claim:
        """The claim as its agent sees it, with the parts that are in the object store: the same call, which `again`
        makes, gives it.

        Raises:
            CancelledError: the run is somebody else's by now.
            BlobsUnavailable: as in `run`.
        """
        if claim.whole:
            return claim
        answer = await self.run(again())
        if not isinstance(answer, Claim):
            raise asyncio.CancelledError
        return answer

    async def own_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Those of `task_ids` that name tasks of the run's own agent, tenant and owner; all others are left out."""
        if not task_ids:  # as good as always
            return []

        async def read(task_id: str) -> Task | None:
            found = await self.run(read_task(self.keys, self._claim.scope, task_id))
            return found[0] if isinstance(found, tuple) else None

        tasks = await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(task_ids)))
        return [task for task in tasks if task is not None]
