"""Limits of a run: total time, and inactivity of the agent.

The event loop enforces the limits, so they work on every pool. Celery enforces its soft limit only on prefork. Celery
enforces its hard limit on prefork by killing the process, and on gevent by raising ``gevent.Timeout`` in the greenlet.
A run's limit is therefore shorter than Celery's hard limit: the agent is cancelled first and can clean up. On prefork,
Celery's limits remain in force for agents that block the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from ..agents import Agent
from ..clock import Clock

STOPPING = 1.0
"""Seconds, in addition to `cancel_grace`, that a run has to stop before Celery's hard limit kills its process."""

STOPPING_SHARE = 0.25
"""Maximum share of the hard limit that `STOPPING` and the grace period may take together."""


@dataclass(frozen=True, slots=True)
class CeleryLimits:
    """Celery's limits for a run in seconds; None means no limit."""

    soft: float | None = None
    hard: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run in seconds; None means no limit.

    Attributes:
        total: Maximum time since the run arrived in the worker process.
        idle: Maximum time since the last activity of the agent.
    """

    total: float | None = None
    idle: float | None = None


def limits_of(agent: Agent, celery: CeleryLimits, cancel_grace: float) -> Limits:
    """Return the limits of a run. The total limit is the lowest of the agent's and Celery's time limits."""
    early = None
    if celery.hard:
        early = celery.hard - min(cancel_grace + STOPPING, celery.hard * STOPPING_SHARE)
    limits = [limit for limit in (agent.time_limit, celery.soft, early) if limit]
    return Limits(min(limits, default=None), agent.idle_limit)


class IdleClock:
    """Time of the last activity of an agent.

    Use the clock as a context manager while an event is queued, because an agent that waits for the store is not idle.
    """

    __slots__ = ("_active_at", "_waiting", "clock")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._waiting = 0
        self._active_at = clock.monotonic()  # an agent may block the event loop before `out_of_time` begins

    def __enter__(self) -> None:
        self._waiting += 1

    def __exit__(self, *_: object) -> None:
        self._waiting -= 1
        self.touch()

    def touch(self) -> None:
        """Record activity of the agent."""
        self._active_at = self.clock.monotonic()

    @property
    def idle_since(self) -> float:
        """Monotonic time of the agent's last activity, or the current time while the agent waits for the store."""
        return self.clock.monotonic() if self._waiting else self._active_at


def time_left(limits: Limits, arrived_at: float, idle_clock: IdleClock) -> float:
    """Return the seconds until a run that arrived at the monotonic time `arrived_at` reaches a limit. Return infinity
    if the run has no limit."""
    ends = []
    if limits.total is not None:
        ends.append(arrived_at + limits.total)
    if limits.idle is not None:
        ends.append(idle_clock.idle_since + limits.idle)
    return min(ends, default=inf) - idle_clock.clock.monotonic()


async def out_of_time(limits: Limits, arrived_at: float, idle_clock: IdleClock) -> None:
    """Wait until a run that arrived at the monotonic time `arrived_at` reaches a limit. Wait forever if the run has no
    limit."""
    idle_clock.touch()
    while True:
        seconds = time_left(limits, arrived_at, idle_clock)
        if seconds == inf:
            await asyncio.get_running_loop().create_future()
        if seconds <= 0:
            return
        await idle_clock.clock.sleep(seconds)
