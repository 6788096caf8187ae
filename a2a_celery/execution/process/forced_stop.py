"""Forced stop of an agent that ignores cancellation: its prefork child exits.

A prefork child runs one Celery task at a time, and the main process of the worker replaces the child. Python cannot
stop a thread, so the child exits instead. After the exit, the main process writes the end of the run (see
`celery.request`). Runs that share a process (threads, solo) cannot be stopped by force.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from threading import Event
from typing import Any, TypeVar

from billiard import current_process
from billiard.pool import EX_RECYCLE
from celery import Celery, bootsteps

from ...clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

POLL_INTERVAL = 0.5
"""Seconds between two checks of a run, and the time within which its event loop must respond."""

abandoned: set[str] = set()
"""Names of the runs in this process whose agents were stopped and still execute."""

COUNT_EVERY = 0.25
"""Seconds between two counts of the children of a pool."""


class Stop(Enum):
    """Why a run is stopped from outside."""

    CANCEL = "a client canceled it"
    LOST = "another worker has its lease"
    OUT_OF_TIME = "it reached a time limit"
    ABORT = "its Celery task was aborted"
    STUCK = "its events cannot be written"
    SHUTDOWN = "its worker shuts down and has requeued it"


def connect(app: Celery) -> None:
    """Make the workers of `app` detect the exit of a child promptly."""
    app.steps["worker"].add(CountsChildren)


class CountsChildren(bootsteps.StartStopStep):  # type: ignore[misc]
    """Boot step that counts the children of a prefork pool four times a second.

    Celery counts them when the pipe of a child closes, which is a moment before the system reports the exit code. That
    count usually misses the child, and Celery's next count follows up to five seconds later.
    """

    requires = ("celery.worker.components:Pool",)

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Celery hook: schedule periodic work on the worker's event loop."""
        hub.call_repeatedly(COUNT_EVERY, worker.pool.maintain_pool)


def in_pool_child() -> bool:
    """Return True in a prefork child. Billiard marks only these processes as daemons."""
    return bool(current_process().daemon)


def end_process() -> None:
    """Exit at once, from any thread.

    The exit code is that of a child that has reached `worker_max_tasks_per_child`: the pool counts no restart, and
    reports the run as lost.
    """
    os._exit(EX_RECYCLE)


def oversee(under_way: Future[T], loop: asyncio.AbstractEventLoop, blocked: Callable[[], None]) -> T:
    """Return the result of `under_way`, which executes on `loop`.

    While the loop does not respond, call `blocked` in this thread every `POLL_INTERVAL` seconds.
    """
    while True:
        try:
            return under_way.result(POLL_INTERVAL)
        except TimeoutError:
            if under_way.done():
                return under_way.result()
        answered = Event()
        loop.call_soon_threadsafe(answered.set)
        while not answered.wait(POLL_INTERVAL):
            blocked()


class GracePeriod:
    """Time for which a run may ignore a stop: `grace` seconds from the first check that found a reason."""

    def __init__(self, grace: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._grace = grace
        self._clock = clock
        self._until: float | None = None

    def is_over(self, reason: object | None) -> bool:
        """Return True if there has been a `reason` for the whole period. None restarts the period."""
        if reason is None:
            self._until = None
        elif self._until is None:
            self._until = self._clock.monotonic() + self._grace
        return self._until is not None and self._clock.monotonic() >= self._until
