"""How long a run may take, in all and without a sign of its agent; kept on the event loop, so on every pool.

Celery enforces its own limits on prefork only, by killing the process in the end. The run's limit is therefore never
later than these, so that the agent is cancelled and can clean up; Celery's stay the net for agents that block the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Any

from ..agents import Agent
from ..lifecycle import Event
from ..lifecycle.steps import Step
from .noting import NotingEvents

STOPPING = 1.0
"""Seconds beside `cancel_grace` that a run gets to end by itself before Celery's hard limit kills its process …"""

STOPPING_SHARE = 0.25
"""… but never more than this share of the hard limit."""


@dataclass(frozen=True, slots=True)
class CeleryLimits:
    """Celery's own limits for a run, in seconds; None: none."""

    soft: float | None = None
    hard: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """A run's limits in seconds: `total` from its arrival in the worker process, `idle` since the agent's last event.
    None: none."""

    total: float | None = None
    idle: float | None = None


def limits_of(agent: Agent, celery: CeleryLimits, cancel_grace: float) -> Limits:
    """The limits of a run: the earliest of the agent's and of Celery's."""
    early = None
    if celery.hard:
        early = celery.hard - min(cancel_grace + STOPPING, celery.hard * STOPPING_SHARE)
    given = [limit for limit in (agent.time_limit, celery.soft, early) if limit]
    return Limits(min(given, default=None), agent.idle_limit)


class TimedEvents(NotingEvents):
    """A run's events, which know when the agent was last heard."""

    _being_taken = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard_at = self.clock.monotonic()  # an agent may block the loop before `out_of_time` begins

    async def enqueue_event(self, event: Event) -> None:
        """See `RunEvents.enqueue_event`."""
        self._being_taken += 1
        try:
            await super().enqueue_event(event)
        finally:
            self._being_taken -= 1
            self.heard_at = self.clock.monotonic()

    def note(self, step: Step) -> None:
        """See `NotingEvents.note`. An agent that tells its steps is not idle."""
        self.heard_at = self.clock.monotonic()
        super().note(step)

    @property
    def idle_since(self) -> float:
        """Since when nothing was heard. An agent that waits for the store to take its event is not idle."""
        return self.clock.monotonic() if self._being_taken else self.heard_at


def time_left(limits: Limits, arrived_at: float, events: TimedEvents) -> float:
    """Return the seconds until a run that arrived at `arrived_at` (monotonic) reaches a limit; infinite without any."""
    ends = []
    if limits.total is not None:
        ends.append(arrived_at + limits.total)
    if limits.idle is not None:
        ends.append(events.idle_since + limits.idle)
    return min(ends, default=inf) - events.clock.monotonic()


async def out_of_time(limits: Limits, arrived_at: float, events: TimedEvents) -> None:
    """Return when a run that arrived at `arrived_at` (monotonic) has reached a limit; never without any."""
    events.heard_at = events.clock.monotonic()
    while True:
        left = time_left(limits, arrived_at, events)
        if left == inf:
            await asyncio.get_running_loop().create_future()
        if left <= 0:
            return
        await events.clock.sleep(left)
