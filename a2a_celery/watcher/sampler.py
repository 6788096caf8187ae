"""Watcher role that records samples of the metrics, so that the operator's page can show their history."""

from __future__ import annotations

import asyncio

from ..clock import SYSTEM_CLOCK, Clock
from ..features.metrics import read_feature_metrics
from ..store import AsyncStore, Keys
from ..store.admin.metrics import read_metrics
from ..store.admin.samples import SERIES, Sample, record_sample
from ..store.admin.usage import read_memory


class Sampler:
    """Watcher role that reads the metrics once a minute and records a sample in each series that is due."""

    name = "samples"
    every = 15.0
    """A tick at which no sample is due does not access the store. It shows that the role is alive."""

    def __init__(self, store: AsyncStore, keys: Keys, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._due_at = dict.fromkeys(SERIES, float("-inf"))

    async def tick(self) -> None:
        """Record a sample in each series that is due."""
        now = self._clock.monotonic()
        due_series = [series for series, due_at in self._due_at.items() if due_at <= now]
        if not due_series:
            return
        metrics, posts, memory = await asyncio.gather(
            self._store.run(read_metrics(self._keys)),
            self._store.run(read_feature_metrics(self._keys)),
            self._store.run(read_memory()),
        )
        sample = Sample.of(metrics, posts.posts, memory)
        for series in due_series:
            await self._store.run(record_sample(self._keys, series, sample))
            self._due_at[series] = now + series.interval
