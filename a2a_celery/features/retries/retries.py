"""Retries of a run: the next attempt after an exception of the agent, and its start."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from celery.exceptions import MaxRetriesExceededError, Retry

from ...delays import MAX_DELAY, require_delay
from ...dispatch import RunOptions
from ...execution.agents.running_agent import RunningAgent
from ...execution.events.run_telemetry import report_problem
from ...integrations.celery import cause_of, without_cycle
from ...lifecycle import Retried
from ..feature import RunFeature
from . import RetryPolicy, require_max_retries

MAX_CAUSE = 64
"""Maximum length of the class name that clients see as the cause of a retry. A longer name is not shown."""


class Retries(RunFeature):
    """Retry policy of an agent, applied to the turn of one run."""

    __slots__ = ("_clock", "_max_retries", "_options", "_policy")

    def __init__(self, agent: RunningAgent) -> None:
        run = agent.run
        policies = (feature for feature in run.agent.features if isinstance(feature, RetryPolicy))
        self._policy = next(policies, RetryPolicy())
        self._max_retries = self._policy.max_retries
        self._options = run.claim.options
        self._clock = run.clock

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


def next_attempt(agent: RunningAgent, error: BaseException) -> tuple[Retried, RunOptions] | None:
    """Return the retry of a run whose agent has raised `error`, and the options of its run, or None for no retry."""
    run = agent.run
    try:
        return agent.feature(Retries).after(error)
    except ValueError as wrong:
        report_problem(run.claim.ref, run.agent.name, "its agent raised a Retry without a valid time", wrong)
        return None


def _class_name(error: BaseException | None) -> str:
    name = type(error).__name__
    is_shown = error is not None and name.isascii() and name.isidentifier() and len(name) <= MAX_CAUSE
    return name if is_shown else ""
