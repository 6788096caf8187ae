"""Runs that a worker has fetched and not begun: the store learns of them, so that they don't wait for a dead worker.

A broker gives them back late (Redis: after its visibility timeout, an hour), and a watcher can't tell them from runs in
a long queue. A thread of the worker's main process tells the store which they are, all in one call. No message waits
for that, and what is begun within `LOOK_EVERY` is never told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.signals import worker_ready
from celery.worker import state

from ..clock import SYSTEM_CLOCK, Clock
from ..config import Settings
from ..errors import StoreUnavailable
from ..store import Keys, SyncStore
from ..store.dispatch import hold_runs
from ..store.runs import RunRef
from .leases import RENEWALS_PER_LEASE

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.5
"""Seconds between two looks; a watcher looks by itself at what a worker fetched that dies before one."""

BATCH = 500

_settings: WeakKeyDictionary[Celery, Callable[[], Settings]] = WeakKeyDictionary()
"""Of each app that has an A2A."""


def tell(app: Celery, settings: Callable[[], Settings]) -> None:
    """Makes `app`'s workers tell the store what they have in hand. Once per app and process is enough."""
    _settings[app] = settings
    worker_ready.connect(_worker_is_ready, weak=False, dispatch_uid="a2a_celery.in_hand")


def _worker_is_ready(sender: Any = None, **_: Any) -> None:
    try:
        settings = _settings.get(sender.app)
        if settings is not None:  # after the pool's processes were forked
            threading.Thread(target=InHand(settings()).tell_for_ever, name="a2a-in-hand", daemon=True).start()
    except Exception:
        logger.exception("what this worker fetches is not told to the store")


class InHand:
    """What this process has fetched and not begun, and when the store last heard of it."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = SyncStore(settings.store_url)
        self._keys = Keys(settings.key_prefix)
        self._lease_ttl = settings.lease_ttl
        self._silent_us, self._again_us = (int(s * 1_000_000) for s in (settings.lease_ttl, settings.redispatch_after))
        self._clock = clock
        self._told: frozenset[str] = frozenset()
        self._told_at = float("-inf")

    def look(self, fetched: frozenset[str]) -> None:
        """Tells the store of the runs `fetched`, if some are new or it is time again.

        Raises:
            StoreUnavailable: it could not be told.
        """
        due = self._clock.monotonic() - self._told_at >= self._lease_ttl / RENEWALS_PER_LEASE
        if not fetched or (fetched <= self._told and not due):
            return
        refs = [ref for ref in map(RunRef.of, fetched) if ref is not None]
        asked_at = self._clock.monotonic()
        for first in range(0, len(refs), BATCH):
            batch = refs[first : first + BATCH]
            self._store.run(hold_runs(self._keys, batch, silent_us=self._silent_us, again_us=self._again_us))
        self._told, self._told_at = fetched, asked_at

    def tell_for_ever(self) -> None:
        """Looks again and again."""
        wait = threading.Event().wait
        while True:
            wait(LOOK_EVERY)
            try:
                self.look(fetched_runs())
            except StoreUnavailable as e:
                logger.warning("the store was not told what is in hand: %s", e)
            except Exception:
                logger.exception("telling the store what is in hand failed; trying again")


def fetched_runs() -> frozenset[str]:
    """Names of the runs that this worker has from its broker and has not begun."""
    begun = {request.id for request in list(state.active_requests)}
    return frozenset(name for name in list(state.requests) if name not in begun and RunRef.of(name) is not None)
