"""Reports of prefetched runs to the store, so that runs of a dead worker are published again early.

A broker redelivers prefetched messages late (Redis after the visibility timeout of one hour), and a watcher cannot
distinguish prefetched runs from runs in a long queue. A thread of the worker's main process reports all prefetched
runs together. No message waits for the report, and a run that begins before the next report is never reported.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery.signals import worker_ready
from celery.worker import state

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ...lifecycle.references import RunRef
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.runs.publication import report_prefetched
from ..celery.request import unfinished_requests
from .leases import RENEWALS_PER_LEASE
from .worker_process import Receivers, installed_on

logger = logging.getLogger(__name__)

REPORT_INTERVAL = 0.5
"""Seconds between two reports. A watcher recovers the runs of a worker that dies before its first report."""

REPORT_BATCH = 500


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Start the reporter of a worker. The processes of the pool have already been forked."""
    try:
        components = installed_on(sender.app)
        if components is not None:
            threading.Thread(
                target=PrefetchReporter(components.settings()).report_forever, name="a2a-prefetched", daemon=True
            ).start()
    except Exception:
        logger.exception("the prefetched runs of this worker are not reported")


RECEIVERS: Receivers = ((worker_ready, worker_is_ready),)


class PrefetchReporter:
    """Reporter of the runs that this process has prefetched but not begun."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = SyncStore(settings.store_url)
        self._keys = Keys(settings.key_prefix)
        self._lease_ttl = settings.lease_ttl
        self._silent_us, self._delay_us = (int(s * 1_000_000) for s in (settings.lease_ttl, settings.redispatch_after))
        self._clock = clock
        self._reported: frozenset[str] = frozenset()
        self._reported_at = float("-inf")

    def report(self, run_names: frozenset[str]) -> None:
        """Report the prefetched runs `run_names` if any run is new or the last report is old.

        Raises:
            StoreUnavailable: The store cannot be reached.
        """
        due = self._clock.monotonic() - self._reported_at >= self._lease_ttl / RENEWALS_PER_LEASE
        if not run_names or (run_names <= self._reported and not due):
            return
        refs = [ref for ref in map(RunRef.of, run_names) if ref is not None]
        asked_at = self._clock.monotonic()
        for first in range(0, len(refs), REPORT_BATCH):
            batch = refs[first : first + REPORT_BATCH]
            self._store.run(report_prefetched(self._keys, batch, silent_us=self._silent_us, delay_us=self._delay_us))
        self._reported, self._reported_at = run_names, asked_at

    def report_forever(self) -> None:
        """Report prefetched runs every `REPORT_INTERVAL` seconds."""
        wait = threading.Event().wait
        while True:
            wait(REPORT_INTERVAL)
            try:
                self.report(fetched_runs())
            except StoreUnavailable as e:
                logger.warning("prefetched runs not reported: %s", e)
            except Exception:
                logger.exception("reporting prefetched runs failed; trying again")


def fetched_runs() -> frozenset[str]:
    """Return the names of the runs that this worker has prefetched but not begun."""
    waiting = (request.id for request in unfinished_requests() if request not in state.active_requests)
    return frozenset(name for name in waiting if RunRef.of(name) is not None)
