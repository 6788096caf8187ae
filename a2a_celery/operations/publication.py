"""Publication of runs after a write to the store."""

from __future__ import annotations

import logging
from functools import partial

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher, RunOptions
from ..errors import StoreUnavailable
from ..lifecycle.references import RunRef
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.runs.publication import PublicationRecorder, mark_published
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

PUBLISH_GRACE = 1.0
"""Seconds for which a process that stops waits for the broker."""


class RunPublisher:
    """Publisher of the runs that the store has queued, which also records the publications.

    A watcher publishes a run that the broker does not accept, a run that begins much later, and a run whose publication
    was not recorded.

    Args:
        messages: Publisher that sends the messages.
        store: Client of the store.
        keys: Keys of the fleet.
        settings: Settings of the fleet.
        clock: Clock of the runs.
        in_background: True if `publish` does not wait for the broker.
        in_batches: True to record publications together, shortly afterwards. Always the case in the background.
    """

    def __init__(
        self,
        messages: Publisher,
        store: AsyncStore,
        keys: Keys,
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        in_background: bool = False,
        in_batches: bool = False,
    ) -> None:
        self.messages = messages
        self._in_background = in_background
        self._in_batches = in_batches
        self._store = store
        self._keys = keys
        self._settings = settings
        self.clock = clock
        self._recorder = PublicationRecorder(store, keys, clock)

    async def publish(self, agent: str, ref: RunRef, options: RunOptions) -> bool:
        """Publish a run.

        Returns:
            True if the broker has or will receive the message, or False if a watcher publishes the run.
        """
        now = self.clock.now()
        if options.publish_delay(now):
            return False
        if self._in_background:
            record = partial(self._recorder.add, ref, options.republish_in(now, self._settings), options.retries)
            self.messages.publish_soon(agent, ref, options, record)
            return True
        try:
            await self.messages.publish_async(agent, ref, options)
        except Exception as e:  # of the broker or of the app, for example of a router
            extra = about(Action.RUN_NOT_PUBLISHED, ref.name, agent=agent)
            logger.warning("run %s: a watcher publishes it: %s", ref.name, e, extra=extra)
            return False
        delay_us = options.republish_in(self.clock.now(), self._settings)
        if self._in_batches:
            self._recorder.add(ref, delay_us, options.retries)
            return True
        try:
            await self._store.run(mark_published(self._keys, ref, delay_us=delay_us, retries=options.retries))
        except StoreUnavailable as e:
            logger.warning("could not record the published run %s; a watcher will publish it again: %s", ref.name, e)
        return True

    async def aclose(self) -> None:
        """Send and record what is being published. If the broker hangs, a watcher publishes the runs."""
        await self.messages.finish(PUBLISH_GRACE)
        await self._recorder.aclose()
