"""Force, for what ignores that it was stopped: its process is ended, where the process has nothing else to do.

A child of a prefork pool runs one Celery task at a time, and its main process replaces it. Nothing the child could do
itself would stop a thread of Python's. What the end of the child means to its run is written by the main process, when
the child is gone (see `request`). Where runs share a process (threads, solo) there is no force.
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

from ..clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

LOOK_EVERY = 0.5
"""Seconds between two looks at a run, and what its event loop has to answer in."""

left_behind: set[str] = set()
"""Names of the runs whose agents were stopped and still run in this process."""

COUNT_EVERY = 0.25
"""Seconds between two counts of a pool's children."""


class Stop(Enum):
    """Why a run is stopped from outside."""

    CANCEL = "a client asked for it"
    LOST = "it was given to another worker"
    OUT_OF_TIME = "it reached a time limit"
    ABORT = "its Celery task was ended"
    STUCK = "what it says can't be written"
    LEAVING = "its worker stops, and has handed it back"


def connect(app: Celery) -> None:
    """Makes `app`'s workers notice soon that a child has ended."""
    app.steps["worker"].add(CountsChildren)


class CountsChildren(bootsteps.StartStopStep):  # type: ignore[misc]
    """Counts the children of a prefork pool four times a second.

    Celery does it when a child's pipe closes, which is a moment before the system gives its exit code: most often that
    child is not missed then, and only when Celery counts again, every five seconds, does anybody hear of its run's end.
    """

    requires = ("celery.worker.components:Pool",)

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Celery's own name for the time at which steps add what they do again and again."""
        hub.call_repeatedly(COUNT_EVERY, worker.pool.maintain_pool)


def in_pool_child() -> bool:
    """Whether this process is a prefork child, which may be ended: billiard makes these daemons, and nothing else."""
    return bool(current_process().daemon)


def end_process() -> None:
    """Ends this process at once, from any of its threads. Its pool takes it for one that has served its time: it counts
    no restart, and finds the run that was lost with it."""
    os._exit(EX_RECYCLE)


def oversee(under_way: Future[T], loop: asyncio.AbstractEventLoop, blocked: Callable[[], None]) -> T:
    """What `under_way` on `loop` gives, or raises. While the loop does not answer, `blocked` is called again and again,
    in this thread."""
    while True:
        try:
            return under_way.result(LOOK_EVERY)
        except TimeoutError:
            if under_way.done():
                return under_way.result()
        answered = Event()
        loop.call_soon_threadsafe(answered.set)
        while not answered.wait(LOOK_EVERY):
            blocked()


class Patience:
    """How long a reason to stop may be ignored: `grace` seconds from when it was first seen."""

    def __init__(self, grace: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._grace = grace
        self._clock = clock
        self._until: float | None = None

    def over(self, reason: object | None) -> bool:
        """Whether there has been a `reason` for that long; None begins anew."""
        if reason is None:
            self._until = None
        elif self._until is None:
            self._until = self._clock.monotonic() + self._grace
        return self._until is not None and self._clock.monotonic() >= self._until
