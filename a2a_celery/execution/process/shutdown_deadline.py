"""Deadline of a warm shutdown for a worker whose broker or store does not answer.

Celery looks for a shutdown between two turns of its main loop. While the broker is silent, kombu's retries of a publish
keep Celery from the next turn, and closing an AMQP channel waits for an answer without a limit. Celery then waits for
all runs, and a run waits until the store answers.
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
"""Seconds in which Celery's main loop has to notice that the worker stops, and then to close its consumer."""

UNWINDING = 10.0
"""Seconds that a worker has left when it runs nothing any more."""


class ShutdownAction(Enum):
    """Action for a worker that does not stop."""

    INTERRUPT = "interrupt the main thread, which waits for the broker"
    CUT = "cut the connection to the broker, which does not answer"
    GO_COLD = "give up the runs, whose leases are over"
    END = "end the process, which runs nothing"


class ShutdownDeadline:
    """The steps of a warm shutdown that begins now. Agents at work are waited for as long as the store answers."""

    def __init__(self, consumer: Any, lease_ttl: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._consumer = consumer
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._began = self._answered_at = clock.monotonic()
        self._closing_since: float | None = None
        self._idle_since: float | None = None
        self._done: set[ShutdownAction] = set()

    def store_has_answered(self) -> None:
        """Note that the store answers: leases can be renewed, and ends be written."""
        self._answered_at = self._clock.monotonic()

    def next_action(self) -> ShutdownAction | None:
        """Return what is due now, each action once, or None."""
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
        """Whether the main loop has not noticed the shutdown. On solo it runs agents, on green pools others do."""
        if detect_environment() != "default":  # type: ignore[no-untyped-call]
            return False
        if isinstance(self._consumer.pool, SoloPool) and state.active_requests:
            return False
        return self._consumer.blueprint.state == RUN and self._clock.monotonic() - self._began >= NOTICE

    def _close_is_stuck(self) -> bool:
        """Whether Celery waits for the broker while it closes its consumer, and so sees no run end on prefork."""
        blueprint = self._consumer.blueprint
        if blueprint.state == RUN or blueprint.shutdown_complete.is_set():
            return False
        if self._closing_since is None:
            self._closing_since = self._clock.monotonic()
        return self._clock.monotonic() - self._closing_since >= NOTICE
