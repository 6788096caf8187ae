"""`Turn.retry` and `Turn.retries`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery.exceptions import Retry

from ...errors import ConfigError
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from .retries import Retries


class RetryMethods(TurnMembers):
    """Methods of `Turn` for retries."""

    @property
    def retries(self) -> int:
        """Number of earlier retries of this turn, like Celery's ``request.retries``.

        Raises:
            ConfigError: The agent is a plain Celery task. Use ``self.request.retries``.
        """
        return self._retries.count

    def retry(
        self,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        exc: BaseException | None = None,
        max_retries: int | None = None,
    ) -> Retry:
        """End the run and retry the turn later: ``raise turn.retry(countdown=60)``.

        The task does not occupy a worker slot until the next attempt begins.

        Args:
            countdown: Seconds until the next attempt begins.
            eta: Time of the next attempt, in UTC if it has no time zone. Without `eta` and `countdown`, the delay is
                the Retry-After header of the cause's `response`, or `default_retry_delay` if there is no header.
            exc: Cause of the retry, or None for the exception that is being handled. Clients see the name of its class.
            max_retries: Maximum number of retries of the turn, or None for the agent's maximum.

        Raises:
            Retry: The turn will be retried. Do not catch this exception.
            BaseException: No retry is left. The exception is `exc`.
            MaxRetriesExceededError: No retry is left, and `exc` is None.
            ValueError: An argument is invalid.
            ConfigError: The agent is a plain Celery task. Use ``self.retry``.
        """
        self._retries.request(countdown, eta, exc, max_retries)

    @property
    def _retries(self) -> Retries:
        if self._agent.run.agent.kind == "task":
            raise ConfigError("a Celery task is retried by its own self.retry(…), and has self.request.retries")
        return self._agent.feature(Retries)


class BlockingRetryMethods(BlockingTurnMembers):
    """Blocking variants of `RetryMethods`."""

    def retry(self, **options: Any) -> Retry:
        """See `Turn.retry`."""
        return self._turn.retry(**options)
