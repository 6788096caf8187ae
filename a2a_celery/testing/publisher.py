"""Publisher of a simulation, which passes runs to the simulated workers instead of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from celery import Celery

from ..dispatch import BrokerQueues, PreparedMessage, Publisher, RunOptions
from ..dispatch.connection import PublishingPool

Execute = Callable[[str, str, int, RunOptions], None]
"""Function that executes a run: name of the agent, id of the task, number of the run and options."""


class NoQueues(BrokerQueues):
    """Queues of a fleet without a broker: no message waits in a queue."""

    def queue_of(self, agent: str, chosen: RunOptions) -> str | None:
        """Return None: the run has no queue."""
        return None


class InProcessPublisher(Publisher):
    """Publisher that calls `execute` on `loop` for each run. Revokes and Celery's events have no effect.

    Thread-safe.
    """

    def __init__(self, app: Celery, fleet: str, loop: asyncio.AbstractEventLoop, execute: Execute) -> None:
        super().__init__(app, {}, fleet)
        self.queues = NoQueues(app, {}, PublishingPool(app))
        self._loop = loop
        self._execute = execute

    def prepare(self, agent: str, task_id: str, run: int, options: RunOptions) -> PreparedMessage | None:
        """Return None: there is no broker, so the store pushes no message."""
        return None

    def publish(self, agent: str, task_id: str, run: int, options: bytes = b"") -> None:
        """See `Publisher.publish`."""
        self._loop.call_soon_threadsafe(self._execute, agent, task_id, run, RunOptions.from_json(options))

    async def publish_async(
        self, agent: str, task_id: str, run: int, options: bytes = b"", *, version_queue: str = ""
    ) -> None:
        """See `Publisher.publish_async`."""
        self.publish(agent, task_id, run, options)

    def publish_soon(self, agent: str, task_id: str, run: int, options: bytes, then: Callable[[], None]) -> None:
        """See `Publisher.publish_soon`."""
        self.publish(agent, task_id, run, options)
        then()

    def revoke_soon(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Do nothing: the store refuses the claim of a canceled run."""

    def revoke(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Do nothing; see `revoke_soon`."""

    def lost_soon(self, agent: str, task_id: str, run: int, worker: str, *, canceled: bool, call: str = "") -> None:
        """Do nothing: no monitor reads Celery's events."""
