"""Store access of one run: retries while the store is unavailable, until the run is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from a2a.types import Task

from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import LeanEvent
from ...errors import BlobsUnavailable, StoreUnavailable
from ...store import AsyncStore, Keys, Operation
from ...store.client.connection import RETRY_INTERVAL
from ...store.runs.commands import Claim, Dropped, RetryUnrecorded, RunLost
from ...store.tasks.commands import read_task

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOB_TIMEOUT = 30.0
"""Seconds for which a run retries an unavailable object store. The run cannot continue without its parts."""


class RunStore:
    """Store access of one run. `lost` is set when another worker has the run."""

    def __init__(self, store: AsyncStore, keys: Keys, claim: Claim, clock: Clock = SYSTEM_CLOCK) -> None:
        self.keys = keys
        self.claim = claim
        self.lost = LeanEvent()
        self._store = store
        self._clock = clock

    async def run(self, operation: Operation[T]) -> T | RunLost:
        """Run an operation, and retry it until the store is available.

        Returns:
            The result of the operation, or RunLost if the run was lost while waiting.

        Raises:
            BlobsUnavailable: If the object store is unavailable for `BLOB_TIMEOUT` seconds.
        """
        until: float | None = None
        while True:
            try:
                answer = await self._store.run(operation)
                if isinstance(answer, RunLost) and answer.missing:
                    text = "run %s is lost: the store lost %d confirmed events, perhaps by a restore from older data"
                    logger.error(text, self.claim.ref.name, answer.missing)
                return answer
            except StoreUnavailable as e:
                if self.lost.is_set():
                    return RunLost()
                if isinstance(e, BlobsUnavailable):
                    until = until or self._clock.monotonic() + BLOB_TIMEOUT
                    if self._clock.monotonic() > until:
                        raise
                logger.warning("run %s: a write waits for the store: %s", self.claim.ref.name, e)
                await self._clock.sleep(RETRY_INTERVAL)

    async def in_full(self, claim: Claim, again: Callable[[], Operation[Claim | Dropped | RetryUnrecorded]]) -> Claim:
        """Return the claim with the parts that are in the object store, by repeating the call that `again` builds.

        Raises:
            CancelledError: If another worker has the run.
            BlobsUnavailable: See `run`.
        """
        if claim.is_resolved:
            return claim
        answer = await self.run(again())
        if not isinstance(answer, Claim):
            raise asyncio.CancelledError
        return answer

    async def own_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Return the tasks among `task_ids` of the run's agent, tenant and owner."""
        if not task_ids:  # as good as always
            return []

        async def read(task_id: str) -> Task | None:
            found = await self.run(read_task(self.keys, self.claim.scope, task_id))
            return found[0] if isinstance(found, tuple) else None

        tasks = await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(task_ids)))
        return [task for task in tasks if task is not None]
