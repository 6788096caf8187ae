"""Publisher for simulations. The publisher passes runs directly to the simulated workers, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from celery import Celery

from ..dispatch import BrokerQueues, Publisher, RunOptions
from ..dispatch.connection import PublishingPool
from ..dispatch.options import DEFAULT_OPTIONS
from ..lifecycle.references import RunRef

Execute = Callable[[str, RunRef, RunOptions], None]
"""Function that executes a run. The first argument is the name of the agent."""


class NoQueues(BrokerQueues):
    """Stand-in for the queues of a broker, in which no message ever waits."""

    def queue_of(self, agent: str, chosen: RunOptions) -> str | None:
        """Return None, because the run has no queue."""
        return None


class InProcessPublisher(Publisher):
    """Publisher that calls `execute` on `loop` for each run. Revocations have no effect, and no Celery events are sent.

    Thread-safe.
    """

    def __init__(self, app: Celery, fleet: str, loop: asyncio.AbstractEventLoop, execute: Execute) -> None:
        super().__init__(app, {}, fleet)
        self.queues = NoQueues(app, {}, PublishingPool(app))
        self._loop = loop
        self._execute = execute

    def publish(self, agent: str, ref: RunRef, options: RunOptions = DEFAULT_OPTIONS) -> None:
        """See `Publisher.publish`."""
        self._loop.call_soon_threadsafe(self._execute, agent, ref, options)

    async def publish_async(
        self, agent: str, ref: RunRef, options: RunOptions = DEFAULT_OPTIONS, *, version_queue: str = ""
    ) -> None:
        """See `Publisher.publish_async`."""
        self.publish(agent, ref, options)

    def publish_soon(self, agent: str, ref: RunRef, options: RunOptions, callback: Callable[[], None]) -> None:
        """See `Publisher.publish_soon`."""
        self.publish(agent, ref, options)
        callback()

    def revoke_soon(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Do nothing, because the store refuses the claim of a cancelled run."""

    def revoke(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Do nothing; see `revoke_soon`."""

    def lost_soon(self, agent: str, task_id: str, run: int, worker: str, *, canceled: bool, call: str = "") -> None:
        """Do nothing, because no monitor reads Celery's events."""
