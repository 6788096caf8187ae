"""Announcements of workers in the store.

Workers without Celery's remote control are announced for the readiness check of gateways. Workers that consume version
queues are announced for the workers with other versions of their agents.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from celery.signals import worker_ready, worker_shutting_down
from celery.worker import state

from ...agents import Agent
from ...dispatch import version_queues
from ...errors import StoreUnavailable
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.admin.start_check import announce_worker
from ...store.admin.version_workers import VersionWorker, announce_versions
from ..process.worker_process import Receivers, installed_on

logger = logging.getLogger(__name__)

ANNOUNCE_EVERY = 5.0
"""Seconds between two announcements. An announcement expires after `ANNOUNCEMENT_TTL_US`."""

_running: list[WorkerAnnouncer] = []
"""Announcer of the worker in this process, if there is one."""


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Start the announcements of a worker that has no remote control or has agents with versions."""
    try:
        components = installed_on(sender.app)
        if components is None:
            return
        version_agents = [agent for agent in components.agents.values() if agent.version is not None]
        is_reachable = has_remote_control(sender)
        if version_agents or not is_reachable:
            announcer = WorkerAnnouncer(components.settings(), sender, version_agents, is_reachable=is_reachable)
            _running[:] = [announcer]
            threading.Thread(target=announcer.announce_forever, name="a2a-announcer", daemon=True).start()
    except Exception:
        logger.exception("this worker is not announced: gateways may report that they are not ready")


def worker_begins_to_stop(**_: Any) -> None:
    """Stop the announcements of the worker. A signal handler calls this function, so it must not use the store."""
    for announcer in _running:
        announcer.stopping.set()


RECEIVERS: Receivers = ((worker_ready, worker_is_ready), (worker_shutting_down, worker_begins_to_stop))


def has_remote_control(consumer: Any) -> bool:
    """Return True if the worker of `consumer` replies to Celery's remote control.

    Source: `include_if` of celery.worker.consumer.control.Control.
    """
    return bool(consumer.app.conf.worker_enable_remote_control) and consumer.conninfo.supports_exchange_type("fanout")


class WorkerAnnouncer:
    """Announcer of a worker, until the worker begins to stop.

    Args:
        settings: Settings of the worker.
        consumer: Consumer of the worker.
        version_agents: The worker's agents that have versions.
        is_reachable: True if the worker replies to Celery's remote control. In this case, only the version queues of
            the worker are announced.
    """

    def __init__(
        self, settings: Settings, consumer: Any, version_agents: Sequence[Agent] = (), *, is_reachable: bool = False
    ) -> None:
        self._store = SyncStore(settings.store_url)
        self._keys = Keys(settings.key_prefix)
        self._consumer = consumer
        self._version_agents = version_agents
        self._is_reachable = is_reachable
        self._announced: list[VersionWorker] = []
        self.stopping = threading.Event()

    def announce(self) -> None:
        """Announce the worker once.

        Raises:
            StoreUnavailable: The announcement was not stored.
        """
        consumer = self._consumer.task_consumer
        queues = sorted(queue.name for queue in consumer.queues) if consumer else []
        if not self._is_reachable:
            announcement = json.dumps({"worker": self._consumer.hostname, "queues": queues}, sort_keys=True)
            self._store.run(announce_worker(self._keys, announcement))
        if self._version_agents:
            self._announce_versions(queues)

    def _announce_versions(self, queue_names: Collection[str]) -> None:
        """Announce the version queues of `queue_names`. If the worker has stopped consuming a queue or consumes
        an additional queue, replace the announcement."""
        app = self._consumer.app
        own = version_queues(app, self._version_agents, tuple(app.amqp.queues))  # including queues no longer consumed
        version_workers = [
            VersionWorker(self._consumer.hostname, queue, agent.name, agent.version or "")
            for queue, agent in sorted(own.items())
            if queue in queue_names
        ]
        if version_workers != self._announced:
            self.withdraw()
        self._store.run(announce_versions(self._keys, version_workers))
        self._announced = version_workers

    def withdraw(self) -> None:
        """Withdraw the announcement of version queues.

        Raises:
            StoreUnavailable: The announcement was not withdrawn.
        """
        self._store.run(announce_versions(self._keys, self._announced, withdraws=True))

    def announce_forever(self) -> None:
        """Announce the worker every `ANNOUNCE_EVERY` seconds until the worker begins to stop."""
        while not any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate)):
            try:
                self.announce()
            except StoreUnavailable as e:
                logger.warning("this worker was not announced: %s", e)
            except Exception:
                logger.exception("this worker was not announced; trying again")
            if self.stopping.wait(ANNOUNCE_EVERY):
                break
        with suppress(StoreUnavailable):
            self.withdraw()
