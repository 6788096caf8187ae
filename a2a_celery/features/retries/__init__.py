"""Retries: an agent whose options name exceptions is called again after such an exception, and `Turn.retry` ends a run
for a later attempt. The options have the names and meanings of Celery's retry options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from celery.exceptions import TaskPredicate
from celery.utils.time import get_exponential_backoff_interval

from ...delays import MAX_DELAY, parse_retry_after, require_delay
from ...errors import ConfigError, EndRun
from ..feature import Feature


def require_max_retries(name: str, value: Any) -> None:
    """Check that `value`, the argument or option `name`, is a valid retry limit.

    Raises:
        ValueError: `value` is neither None nor a whole number of at least 0.
    """
    if value is not None and not (_is_whole(value) and value >= 0):
        raise ValueError(f"{name} = {value!r}: a whole number, 0 or more, or None for no limit")


def _require_classes(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list | set | frozenset):
        raise ValueError(f"{name} = {value!r}: a tuple of exception classes, such as (ConnectionError,)")
    for kind in value:
        if isinstance(kind, type) and issubclass(kind, EndRun):
            raise ValueError(f"{name}: {kind.__name__} ends a run on purpose and is never retried; leave it out")
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise ValueError(f"{name}: {kind!r} is not a subclass of Exception")


def _require_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: True or False")


def _require_backoff(name: str, value: Any) -> None:
    if not isinstance(value, bool) and not (_is_whole(value) and 0 <= value <= MAX_DELAY):
        raise ValueError(f"{name} = {value!r}: True, False or a whole number of seconds up to {MAX_DELAY}")


def _require_seconds(name: str, value: Any) -> None:
    if not _is_whole(value) or not 1 <= value <= MAX_DELAY:
        raise ValueError(f"{name} = {value!r}: a whole number of seconds from 1 to {MAX_DELAY}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_CHECKS = {
    "autoretry_for": _require_classes,
    "dont_autoretry_for": _require_classes,
    "max_retries": require_max_retries,
    "retry_backoff": _require_backoff,
    "retry_backoff_max": _require_seconds,
    "retry_jitter": _require_bool,
    "default_retry_delay": require_delay,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy(Feature):
    """Retry policy for the runs of an agent, or for a durable step.

    A run is retried if its agent raises an exception of a class in `autoretry_for` that is not of a class in
    `dont_autoretry_for`. The maximum number of retries is `max_retries`, or unlimited if `max_retries` is None.

    Without `retry_backoff`, the delay is `default_retry_delay` seconds. With `retry_backoff`, the first delay is that
    number of seconds (True means 1), and the delay doubles with each retry, up to `retry_backoff_max` seconds. With
    `retry_jitter`, the doubling delay is replaced with a random time between 0 and that delay. A Retry-After header in
    the exception takes precedence; see `requested_delay`. Exceptions that end a run on purpose, such as `Rejected` and
    Celery's ``Ignore``, cause no retry.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset(_CHECKS)

    autoretry_for: tuple[type[Exception], ...] = ()
    dont_autoretry_for: tuple[type[Exception], ...] = ()
    max_retries: int | None = 3
    retry_backoff: bool | int = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    default_retry_delay: float = 180

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return the retry policy of an agent, or None for the default policy."""
        return cls.from_options(agent, options) if options else None

    @classmethod
    def from_options(cls, agent: str, options: Mapping[str, Any]) -> Self:
        """Return the retry policy of an agent.

        Args:
            agent: Name of the agent, for error messages.
            options: Values of options in `OPTIONS`.

        Raises:
            ConfigError: An option is invalid.
        """
        try:
            for name, value in options.items():
                _CHECKS[name](name, value)
        except ValueError as error:
            raise ConfigError(f"agent {agent!r}: {error}") from None
        classes = {name: tuple(options[name]) for name in ("autoretry_for", "dont_autoretry_for") if name in options}
        return cls(**{**options, **classes})

    def is_retried(self, error: BaseException) -> bool:
        """Return True if a run that failed with `error` may be retried, regardless of the number of retries."""
        if isinstance(error, (EndRun, TaskPredicate)):  # Celery's Ignore, Reject and Retry
            return False
        return isinstance(error, self.autoretry_for) and not isinstance(error, self.dont_autoretry_for)

    def backoff(self, retries: int) -> float:
        """Return the delay, in seconds, before the next retry of a run that was already retried `retries` times."""
        if not self.retry_backoff:
            return self.default_retry_delay
        delay: int = get_exponential_backoff_interval(
            factor=int(self.retry_backoff),
            retries=min(retries, self.retry_backoff_max.bit_length()),  # further retries have the maximum delay
            maximum=self.retry_backoff_max,
            full_jitter=self.retry_jitter,
        )
        return delay

    def requested_delay(self, error: BaseException | None, now: float) -> float | None:
        """Return the delay of the Retry-After header in `error`, or None without such a header. The delay is at most
        `retry_backoff_max` seconds.

        The header is read from `error.response.headers`. Exceptions of httpx and of model providers' clients have this
        attribute.

        Args:
            error: Exception of the agent, or None.
            now: Current time in seconds since 1970.
        """
        try:
            headers = error.response.headers  # type: ignore[union-attr]
            value = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
        except Exception:  # the attributes of an unknown class may raise anything
            return None
        delay = parse_retry_after(value, now) if isinstance(value, str) else None
        return None if delay is None else min(delay, self.retry_backoff_max)
