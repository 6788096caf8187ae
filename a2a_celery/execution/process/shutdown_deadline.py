"""Deadline of a warm shutdown for a worker whose broker or store does not reply.

Celery checks for a shutdown between two iterations of its main loop. While the broker does not reply, kombu's retries
of a publish block the main loop, and closing an AMQP channel waits without a limit. Celery then waits for all runs, and
a run may wait for the store.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from celery.bootsteps import RUN
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state
from kombu.utils.compat import detect_environment

from ...clock import SYSTEM_CLOCK, Clock

NOTICE = 10.0
"""Maximum seconds until Celery's main loop begins the shutdown, and then until the loop has closed the consumer."""

UNWINDING = 10.0
"""Maximum seconds until a worker without active Celery tasks ends."""


class ShutdownAction(Enum):
    """Action on a worker that does not stop."""

    INTERRUPT = "interrupt the main thread, which waits for the broker"
    CUT = "close the connection to the broker, which does not reply"
    GO_COLD = "abandon the runs, whose leases have expired"
    END = "end the process, which has no active Celery task"


class ShutdownDeadline:
    """Steps of a warm shutdown that begins when the object is created. Active agents may continue as long as the store
    replies."""

    def __init__(self, consumer: Any, lease_ttl: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._consumer = consumer
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._began = self._answered_at = clock.monotonic()
        self._closing_since: float | None = None
        self._idle_since: float | None = None
        self._done: set[ShutdownAction] = set()

    def store_has_answered(self) -> None:
        """Record that the store replies. Leases can therefore be renewed, and outcomes of runs can be written."""
        self._answered_at = self._clock.monotonic()

    def next_action(self) -> ShutdownAction | None:
        """Return the action that is due, or None. Each action is returned only once."""
        action = self._due()
        if action is None or action in self._done:
            return None
        self._done.add(action)
        return action

    def _due(self) -> ShutdownAction | None:
        if self._loop_is_stuck() and ShutdownAction.INTERRUPT not in self._done:
            return ShutdownAction.INTERRUPT
        if self._close_is_stuck() and ShutdownAction.CUT not in self._done:
            return ShutdownAction.CUT
        if state.active_requests:
            self._idle_since = None
            return ShutdownAction.GO_COLD if self._clock.monotonic() - self._answered_at >= self._lease_ttl else None
        if self._idle_since is None:
            self._idle_since = self._clock.monotonic()
        return ShutdownAction.END if self._clock.monotonic() - self._idle_since >= UNWINDING else None

    def _loop_is_stuck(self) -> bool:
        """Return True if the main loop has not begun the shutdown, except on solo and green pools, where the loop runs
        tasks."""
        if detect_environment() != "default":  # type: ignore[no-untyped-call]
            return False
        if isinstance(self._consumer.pool, SoloPool) and state.active_requests:
            return False
        return self._consumer.blueprint.state == RUN and self._clock.monotonic() - self._began >= NOTICE

    def _close_is_stuck(self) -> bool:
        """Return True if Celery waits for the broker while closing the consumer. During this time, a prefork worker
        does not notice that runs have ended."""
        blueprint = self._consumer.blueprint
        if blueprint.state == RUN or blueprint.shutdown_complete.is_set():
            return False
        if self._closing_since is None:
            self._closing_since = self._clock.monotonic()
        return self._clock.monotonic() - self._closing_since >= NOTICE
