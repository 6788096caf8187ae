"""Announcements of workers without Celery's remote control, for the readiness check of gateways."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from celery.signals import worker_ready
from celery.worker import state

from ...errors import StoreUnavailable
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.admin.schema import SCHEMA
from ...store.admin.start_check import announce_worker
from ..process.worker_process import Receivers, installed_on

logger = logging.getLogger(__name__)

ANNOUNCE_EVERY = 5.0
"""Seconds between two announcements. An announcement expires after `ANNOUNCEMENT_TTL_US`."""


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Start the announcements of a worker without remote control."""
    try:
        installed = installed_on(sender.app)
        if installed is not None and not has_remote_control(sender):
            announcer = WorkerAnnouncer(installed.settings(), sender)
            threading.Thread(target=announcer.announce_forever, name="a2a-announcer", daemon=True).start()
    except Exception:
        logger.exception("this worker is not announced: gateways may report that they are not ready")


RECEIVERS: Receivers = ((worker_ready, worker_is_ready),)


def has_remote_control(consumer: Any) -> bool:
    """Return True if the worker of `consumer` replies to Celery's remote control.

    Source: `include_if` of celery.worker.consumer.control.Control.
    """
    return bool(consumer.app.conf.worker_enable_remote_control) and consumer.conninfo.supports_exchange_type("fanout")


class WorkerAnnouncer:
    """Announces the worker of `consumer` with its queues until it begins to stop."""

    def __init__(self, settings: Settings, consumer: Any) -> None:
        self._store = SyncStore(settings.store_url)
        self._keys = Keys(settings.key_prefix)
        self._consumer = consumer

    def announce(self) -> None:
        """Announce the worker once.

        Raises:
            StoreUnavailable: The announcement was not stored.
        """
        consumer = self._consumer.task_consumer
        queues = sorted(queue.name for queue in consumer.queues) if consumer else []
        announcement = json.dumps({"worker": self._consumer.hostname, "queues": queues}, sort_keys=True)
        self._store.run(announce_worker(self._keys, announcement, schema=SCHEMA))

    def announce_forever(self) -> None:
        """Announce the worker at intervals until it begins to stop."""
        wait = threading.Event().wait
        while not any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate)):
            try:
                self.announce()
            except StoreUnavailable as e:
                logger.warning("this worker was not announced: %s", e)
            except Exception:
                logger.exception("this worker was not announced; trying again")
            wait(ANNOUNCE_EVERY)
