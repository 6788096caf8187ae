"""Release of a retried run of an agent to its queue."""

from __future__ import annotations

import logging
from datetime import timedelta

from a2a.types import TaskStatusUpdateEvent

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import Publisher, RunOptions
from ...dispatch.options import MICROSECOND
from ...lifecycle import Canceled, Lost, Outcome
from ...lifecycle.states import CANCELED
from ...settings import Settings
from ...store.runs.commands import mark_published
from ...store.runs.release import Released
from ...store.tasks.commands import FIRST_PUBLISH_GRACE_US
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..plain_tasks.threaded_call import released_for_retry
from .queue import RunEventQueue

logger = logging.getLogger(__name__)


class RetryRelease:
    """Releases a run to its queue. Its next attempt begins at `options.not_before`."""

    def __init__(self, publisher: Publisher, agent: str, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._publisher = publisher
        self._agent = agent
        self._look_after = timedelta(seconds=min(settings.lease_ttl, settings.redispatch_after))
        self._clock = clock

    async def perform(
        self, events: RunEventQueue, final: TaskStatusUpdateEvent | None, options: RunOptions
    ) -> Outcome | None:
        """Release the run with the status `final`, then publish it.

        A watcher publishes a run that begins much later, and one that the broker does not accept.

        Returns:
            The outcome if the run was not retried, or None.
        """
        claim, keys = events.store.claim, events.store.keys
        delay = options.publish_delay(self._clock.now())
        again_us = delay // MICROSECOND + FIRST_PUBLISH_GRACE_US
        make_release = released_for_retry(keys, claim, options, again_us)
        released = await events.release(final, make_release, drops_open_artifacts=True)
        if not isinstance(released, Released):
            return Lost()
        if released.state == CANCELED:
            return Canceled()
        if not delay:
            await self._publish(events, options)
        return None

    async def _publish(self, events: RunEventQueue, options: RunOptions) -> None:
        ref = events.store.claim.ref
        try:
            await self._publisher.publish_async(self._agent, ref.task_id, ref.run, options.to_json())
        except Exception as error:
            extra = about(Action.RUN_NOT_PUBLISHED, ref.name, agent=self._agent)
            logger.warning("run %s: a watcher publishes its retry: %s", ref.name, error, extra=extra)
            return
        again = options.next_check_in(self._clock.now(), self._look_after)
        await events.store.run(mark_published(events.store.keys, ref, again_us=again // MICROSECOND))
