"""Hourly budget of bytes for each owner and host, kept in the store for all watchers."""

from __future__ import annotations

import random
from collections import OrderedDict

from ...clock import SYSTEM_CLOCK, Clock
from ...push import Deferred
from ...store import AsyncStore, Keys
from ...store.webhooks.deliveries import acquire_bytes
from ..metrics import WatcherMetrics

MAX_EXHAUSTED_BUDGETS = 10_000
"""Exhausted budgets that a watcher remembers. For all other budgets it queries the store."""
REASON = "the byte budget of its owner for this host is exhausted"
MIN_DEFERRAL = 1.0
"""Minimum seconds before a deferred delivery is retried. The maximum is twice the known wait."""


class ByteBudget:
    """Budget of each owner and host. A post that exceeds the budget is deferred and stays due."""

    def __init__(
        self, store: AsyncStore, keys: Keys, per_hour: int, metrics: WatcherMetrics, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store = store
        self._keys = keys
        self._per_hour = per_hour
        self._metrics = metrics
        self._clock = clock
        self._exhausted_until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def deferral(self, owner: str, host: str) -> Deferred | None:
        """Return a Deferred if this watcher knows that the budget is exhausted. Send no request."""
        wait = self._exhausted_until.get((owner, host), 0.0) - self._clock.monotonic()
        return self._defer(wait) if wait > 0 else None

    async def acquire(self, owner: str, host: str, size: int) -> Deferred | None:
        """Take the bytes of one post from the budget, or return a Deferred. The last post may overdraw the budget.

        Raises:
            StoreUnavailable: The store is unavailable, so nothing may be posted.
        """
        wait = await self._store.run(acquire_bytes(self._keys, owner, host, size, per_hour=self._per_hour))
        if wait <= 0:
            return None
        self._exhausted_until[owner, host] = self._clock.monotonic() + wait
        self._exhausted_until.move_to_end((owner, host))
        if len(self._exhausted_until) > MAX_EXHAUSTED_BUDGETS:
            self._exhausted_until.popitem(last=False)
        return self._defer(wait)

    def _defer(self, seconds: float) -> Deferred:
        self._metrics.count_deferral_for_bytes()
        return Deferred(max(seconds, MIN_DEFERRAL) * (1 + random.random()), REASON, is_reported=True)
