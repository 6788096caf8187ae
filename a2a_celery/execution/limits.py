"""Limits of a run: total time, inactivity of the agent, and retries.

The event loop enforces the limits, so they work on every pool. Celery enforces its soft limit only on prefork. Celery
enforces its hard limit on prefork by killing the process, and on gevent by raising ``gevent.Timeout`` in the greenlet.
A run's limit is therefore shorter than Celery's hard limit: the agent is cancelled first and can clean up. On prefork,
Celery's limits remain in force for agents that block the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import NoReturn, cast

from celery.exceptions import MaxRetriesExceededError, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import RunOptions
from ..lifecycle import Retried
from ..retry_policy import MAX_DELAY, RetryPolicy, require_delay, require_max_retries

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


MAX_CAUSE = 64
"""Maximum length of the class name that clients see as the cause of a retry. A longer name is not shown."""


class Retries:
    """Retry policy of an agent, applied to the turn of one run."""

    __slots__ = ("_clock", "_max_retries", "_options", "_policy")

    def __init__(self, policy: RetryPolicy, options: bytes, clock: Clock = SYSTEM_CLOCK) -> None:
        self._policy = policy
        self._max_retries = policy.max_retries
        self._options = options
        self._clock = clock

    @property
    def count(self) -> int:
        """Number of retries before this run."""
        return self._stored_options.retries

    def request(
        self,
        countdown: float | None = None,
        eta: datetime | None = None,
        exc: BaseException | None = None,
        max_retries: int | None = None,
    ) -> NoReturn:
        """Raise Celery's `Retry`, or the final exception if no retry is left; see `Turn.retry`."""
        if countdown is not None and eta is not None:
            raise ValueError("turn.retry(countdown=, eta=): pass only one of them")
        if max_retries is not None:
            require_max_retries("max_retries", max_retries)
            self._max_retries = max_retries  # the limit also applies if the exception causes an autoretry
        if self._is_exhausted:
            raise exc or MaxRetriesExceededError(f"the run was retried {self.count} times")
        raise self._retry(eta if countdown is None else countdown, exc or sys.exc_info()[1])

    def _retry(self, when: object, cause: BaseException | None) -> Retry:
        """Return the exception for `request`. To avoid a reference cycle, no frame of the traceback refers to the
        exception."""
        retry = without_cycle(Retry(when=self._begins_at(when, cause) or 0))
        retry.exc = cause  # set here, because the constructor replaces exceptions that cannot be pickled
        return retry

    def after(self, error: BaseException) -> tuple[Retried, RunOptions] | None:
        """Return the retry that follows `error`.

        Returns:
            The retry and the options of its run, or None if the run is not retried.

        Raises:
            ValueError: The time in Celery's `Retry` is invalid.
        """
        if isinstance(error, Retry):
            cause, begins_at = cause_of(error), self._begins_at(error.when, cause_of(error))
        elif self._policy.is_retried(error):
            delay = self._policy.requested_delay(error, self._clock.time())
            cause, begins_at = error, self._at(self._policy.backoff(self.count) if delay is None else delay)
        else:
            return None
        if self._is_exhausted:
            return None
        limit = None if self._max_retries is None else self._max_retries + 1
        retry = Retried(self.count + 2, limit, begins_at.isoformat() if begins_at else "", _class_name(cause))
        # `not_after` limits the start of the first attempt only
        return retry, replace(self._stored_options, retries=self.count + 1, not_before=begins_at, not_after=None)

    @property
    def _stored_options(self) -> RunOptions:
        return RunOptions.from_json(self._options)

    @property
    def _is_exhausted(self) -> bool:
        return self._max_retries is not None and self.count >= self._max_retries

    def _begins_at(self, when: object, cause: BaseException | None) -> datetime | None:
        """Return the start time of a retry, or None if the retry begins at once.

        Args:
            when: Attribute `when` of Celery's `Retry`: a number of seconds, a datetime (UTC if it has no time zone), or
                None for the default delay.
            cause: Exception that caused the retry, or None.
        """
        if when is None:
            delay = self._policy.requested_delay(cause, self._clock.time())
            return self._at(self._policy.default_retry_delay if delay is None else delay)
        if not isinstance(when, datetime):
            require_delay("countdown", when)
            return self._at(when)  # type: ignore[arg-type]
        eta = when if when.tzinfo else when.replace(tzinfo=UTC)
        delay = (eta - self._clock.now()).total_seconds()
        if delay > MAX_DELAY:
            raise ValueError(f"eta = {when!r}: at most {MAX_DELAY} seconds from now")
        return eta.astimezone(UTC) if delay > 0 else None

    def _at(self, delay: float) -> datetime | None:
        return self._clock.now() + timedelta(seconds=delay) if delay > 0 else None


def cause_of(retry: Retry) -> BaseException | None:
    """Return the exception in Celery's `Retry`, or None.

    If an exception cannot be pickled, Celery's constructor replaces it with an exception of a base class or with a
    wrapper. In this case, the original exception is returned.
    """
    cause, original = cast(BaseException | None, retry.exc), retry.__cause__ or retry.__context__
    if cause is None or original is None:
        return cause
    is_replaced = isinstance(cause, UnpickleableExceptionWrapper) or isinstance(original, type(cause))
    return original if is_replaced else cause


def without_cycle(retry: Retry) -> Retry:
    """Remove the `args` of `retry`, which contain `retry` itself, and return `retry`.

    Otherwise, the exception and its traceback would stay in memory until the garbage collector runs.
    """
    retry.args = ()
    return retry


def error_without_retry(retry: Retry) -> BaseException:
    """Return the exception that ends a run if its agent raised `retry` but no retry is left."""
    return cause_of(retry) or MaxRetriesExceededError("the run has reached its limit of retries")


def _class_name(error: BaseException | None) -> str:
    name = type(error).__name__
    is_shown = error is not None and name.isascii() and name.isidentifier() and len(name) <= MAX_CAUSE
    return name if is_shown else ""
