"""Publishes runs that no worker claimed: whose first publish failed, or got lost on its way.

A run is due a few seconds after its creation unless its publish succeeded; then, and after each try of ours, later
and later, so that a queue that is merely long is not filled with copies. A copy does no harm: a run is claimed once.
"""

from __future__ import annotations

import logging

from ..dispatch import Publisher
from ..errors import BrokerUnavailable
from ..store import AsyncStore, Keys
from ..store.runs import mark_published, take_due_runs

logger = logging.getLogger(__name__)

BATCH = 100
BROKER_BACK_US = 2_000_000
"""How long a broker that took nothing is left alone."""


class Dispatcher:
    """One look at the runs that are due; several watchers never take the same one."""

    name = "dispatcher"
    every = 1.0

    def __init__(self, store: AsyncStore, keys: Keys, publisher: Publisher, redispatch_after: float) -> None:
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._again_us = int(redispatch_after * 1_000_000)

    async def tick(self) -> None:
        """Publishes what is due. What the broker does not take is due again."""
        due = await self._store.run(take_due_runs(self._keys, limit=BATCH, again_us=self._again_us))
        for number, (ref, agent) in enumerate(due):
            try:
                await self._publisher.publish_async(agent, ref.task_id, ref.run)
                logger.info("run %s dispatched again", ref.name)
            except BrokerUnavailable as e:
                logger.warning("%d runs not dispatched, trying again: %s", len(due) - number, e)
                for left, _ in due[number:]:
                    await self._store.run(mark_published(self._keys, left, again_us=BROKER_BACK_US))
                return
