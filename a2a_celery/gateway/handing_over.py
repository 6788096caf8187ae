"""Handing accepted runs to the broker, and telling the store which of them it has: many at a time, for nobody waits."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher, RunOptions
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.dispatch import mark_all_published
from ..store.runs import RunRef

logger = logging.getLogger(__name__)

TELL_EVERY = 0.25
"""Seconds in which published runs gather before the store is told. Much less than `FIRST_PUBLISH_GRACE_US`: until then
a watcher takes a run for one that nobody published."""


class HandingOver:
    """Publishes runs in the background. A watcher looks at each that is not claimed, after `look_after` seconds.

    A run of a plain Celery task is looked at after `redispatch_after` seconds: it may run without being claimed.

    What the store could not be told of, also because this process ended, is published a second time, and dropped by
    the worker that gets it.
    """

    def __init__(
        self,
        publisher: Publisher,
        store: AsyncStore,
        keys: Keys,
        redispatch_after: float,
        look_after: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.publisher = publisher
        self._store = store
        self._keys = keys
        self._redispatch_after = timedelta(seconds=redispatch_after)
        self._look_after = min(timedelta(seconds=look_after), self._redispatch_after)
        self._published: dict[RunRef, int] = {}
        self._telling: asyncio.Task[None] | None = None

    def publish(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publishes a run soon; one that shall begin much later is left to a watcher."""
        now = self._clock.now()
        if options.held_for(now):
            return
        wait = self._look_after if options.call is None else self._redispatch_after
        again_us = options.again_in(now, wait) // timedelta(microseconds=1)

        def has_it() -> None:
            self._published[ref] = again_us
            if self._telling is None:
                self._telling = asyncio.create_task(self._tell_later(), name="a2a-published-runs")

        self.publisher.publish_soon(agent, ref.task_id, ref.run, options.to_json(), has_it)

    async def aclose(self) -> None:
        """Tells the store the rest."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait({self._telling})
        await self._tell()

    async def _tell_later(self) -> None:
        while self._published:
            await self._clock.sleep(TELL_EVERY)
            await self._tell()
        self._telling = None

    async def _tell(self) -> None:
        published, self._published = self._published, {}
        if not published:
            return
        try:
            await self._store.run(mark_all_published(self._keys, published))
        except StoreUnavailable as e:
            logger.warning("%d runs will be published a second time: %s", len(published), e)
        except Exception:  # whatever it is: those that come after are told of all the same
            logger.exception("%d runs will be published a second time", len(published))
