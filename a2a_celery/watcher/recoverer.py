"""Sees to runs that were lost with their workers, by their agents' crash promise.

A worker that dies stops renewing its leases. When one is over, the run is taken from it: at most once (an agent's
default) means that its task is FAILED; an agent with `max_attempts` gets the next run, on any worker. A worker that was
only paused finds that it has lost the run, can write nothing more, and cancels its agent. Runs that a stopping worker
handed back, but could not pass on, come here too. Celery's listeners, Flower among them, are told of the others in the
name of the worker that is gone.
"""

from __future__ import annotations

import logging
from math import inf

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.recovery import Lapsed, give_next_attempt, lapsed_runs
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

BATCH = 100
FIRST_WAIT_US = 500_000
"""How long the second attempt waits, and each further one twice as long: an agent may be what kills its workers."""

LONGEST_WAIT_US = 60_000_000


class Recoverer:
    """One look at the leases that are over; each is seen to once, however many watchers look."""

    name = "recoverer"
    every = 0.5

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        grace: float = 0,
        publisher: Publisher | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._keys = keys
        self._grace = grace
        self._publisher = publisher
        self._clock = clock
        self._looked_at = -inf
        self._not_before = -inf

    async def tick(self) -> None:
        """Sees to what has lapsed.

        Not right after a start, or when the store was away: for `grace` seconds, the workers come first, whose leases
        lapsed because nobody could renew them. A store that was silent, and answered in the end, was away too.
        """
        try:
            lapsed = await self._store.run(lapsed_runs(self._keys, limit=BATCH))
            if self._clock.monotonic() - self._looked_at > self._grace + self.every:
                self._not_before = self._clock.monotonic() + self._grace
            self._looked_at = self._clock.monotonic()
            if self._clock.monotonic() < self._not_before:
                return
            for one in lapsed:
                await self._see_to(one)
        except StoreUnavailable:
            self._not_before = self._clock.monotonic() + self._grace
            raise

    async def _see_to(self, lapsed: Lapsed) -> None:
        wait_us = 0 if lapsed.handed_back else min(FIRST_WAIT_US * 2 ** (lapsed.attempt - 1), LONGEST_WAIT_US)
        lapse = await give_next_attempt(self._store, self._keys, lapsed, again_us=wait_us)
        about_it = about(Action.RUN_LOST, lapsed.ref.name, agent=lapsed.agent, outcome=lapse.what)
        match lapse.what:
            case "again":
                said = "run %s of %s was lost; run %s follows"
                logger.warning(said, lapsed.ref.name, lapsed.agent, lapse.next_run, extra=about_it)
            case "failed":
                said = "run %s of %s was lost; its task is failed: a2a requeue %s runs it again"
                logger.warning(said, lapsed.ref.name, lapsed.agent, lapsed.ref.task_id, extra=about_it)
            case "canceled":
                said = "run %s of %s was lost; its task is canceled"
                logger.warning(said, lapsed.ref.name, lapsed.agent, extra=about_it)
            case _:
                return  # somebody else saw to it, or the next look will
        if lapsed.worker and not lapsed.handed_back and self._publisher is not None:
            of = (lapsed.agent, lapsed.ref.task_id, lapsed.ref.run)
            self._publisher.lost_soon(*of, lapsed.worker, canceled=lapse.what == "canceled", call=lapsed.call)
