"""Publish accepted runs in the background and record them as published, in batches, as no request waits for the
record."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import Publisher, RunOptions
from ...errors import StoreUnavailable
from ...store import AsyncStore, Keys
from ...store.runs.commands import RunRef
from ...store.runs.dispatch import mark_all_published

logger = logging.getLogger(__name__)

RECORD_INTERVAL = 0.25
"""Seconds between two records. Much shorter than `FIRST_PUBLISH_GRACE_US`, after which a watcher publishes an
unrecorded run."""


class BackgroundPublisher:
    """Publishes runs in the background and records them as published.

    If a record fails or this process ends first, a watcher publishes the run again, and the worker drops the duplicate.

    Args:
        redispatch_after: Seconds after which a watcher checks an unclaimed run of a plain Celery task, which may run
            unclaimed.
        recover_after: Seconds after which a watcher checks any other unclaimed run.
    """

    def __init__(
        self,
        publisher: Publisher,
        store: AsyncStore,
        keys: Keys,
        redispatch_after: float,
        recover_after: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.publisher = publisher
        self._store = store
        self._keys = keys
        self._redispatch_after = timedelta(seconds=redispatch_after)
        self._recover_after = min(timedelta(seconds=recover_after), self._redispatch_after)
        self._published: dict[RunRef, int] = {}
        self._recorder: asyncio.Task[None] | None = None

    def publish(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publish a run soon. A watcher publishes a run that is scheduled for much later."""
        now = self._clock.now()
        if options.publish_delay(now):
            return
        wait = self._recover_after if options.call is None else self._redispatch_after
        again_us = options.next_check_in(now, wait) // timedelta(microseconds=1)

        def on_published() -> None:
            self._published[ref] = again_us
            if self._recorder is None:
                self._recorder = asyncio.create_task(self._record_later(), name="a2a-published-runs")

        self.publisher.publish_soon(agent, ref.task_id, ref.run, options.to_json(), on_published)

    async def aclose(self) -> None:
        """Record the remaining runs."""
        if self._recorder is not None:
            self._recorder.cancel()
            await asyncio.wait({self._recorder})
        await self._record()

    async def _record_later(self) -> None:
        while self._published:
            await self._clock.sleep(RECORD_INTERVAL)
            await self._record()
        self._recorder = None

    async def _record(self) -> None:
        published, self._published = self._published, {}
        if not published:
            return
        try:
            await self._store.run(mark_all_published(self._keys, published))
        except StoreUnavailable as e:
            logger.warning(
                "could not record %d published runs; watchers will publish them again: %s", len(published), e
            )
        except Exception:  # later runs must still be recorded
            logger.exception("could not record %d published runs; watchers will publish them again", len(published))
