"""Progress of a step between two polls of its remote task. The progress is part of the Celery message."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Self

from a2a.types import Task

from ...clock import SYSTEM_CLOCK, Clock
from ..result import Result

POLL_INTERVAL_MIN = 0.5
POLL_INTERVAL_MAX = 30.0
"""Limits of the poll interval in seconds. Within the limits, the interval is a quarter of the step's age or, while the
agent is unreachable, half of the time since the first failed attempt."""

WEBHOOK_POLL_INTERVAL_MIN = 60.0
WEBHOOK_POLL_INTERVAL_MAX = 600.0
"""Limits of the poll interval in seconds if the agent accepted the webhook. Polling then only makes up for lost
notifications."""

JITTER = 0.2
"""Random variation of the poll interval, as a fraction of the interval, so that steps do not poll at the same
moment."""

DIGEST_LENGTH = 16

POLLS_PER_SECOND = 10
"""Maximum polls per second of all steps in one process. A poll occupies a worker slot for about 10 ms."""

POLLS_PER_VISIBILITY_TIMEOUT = 3.0
"""Minimum number of polls within the visibility timeout of a Redis broker."""


class PollRateLimiter:
    """Rate limiter for the polls of one process, so that other tasks get worker slots. If there are few steps, polls
    are not delayed."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._taken_until = clock.monotonic()

    def wait(self) -> float:
        """Reserve the next free time slot, and return the seconds until that slot."""
        now = self._clock.monotonic()
        self._taken_until = max(self._taken_until, now) + 1 / POLLS_PER_SECOND
        return self._taken_until - now


@dataclass(frozen=True, slots=True)
class CallProgress:
    """Progress of a step. Times are in seconds since 1970, measured by the clock of the polling worker.

    Attributes:
        began: Time of the step's first run.
        task_id: Id of the remote task, or "" before the agent has responded to the message.
        has_webhook: True if the agent accepted the webhook.
        failing_since: Time since which the agent has been unreachable, or None if the last attempt succeeded.
        not_before: Time before which the server accepts no request, or None if the server sent no such time.
        question: Digest of the status that the message answers (see `question_digest`), or None if the message answers
            no question.
    """

    began: float
    task_id: str = ""
    has_webhook: bool = False
    failing_since: float | None = None
    not_before: float | None = None
    question: str | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any] | None, now: float) -> Self:
        """Deserialize the output of `to_dict`. If `data` is None, return the progress of a step that begins at
        `now`."""
        return cls(began=now) if data is None else cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def reached(self, task_id: str, *, has_webhook: bool, question: str | None = None) -> CallProgress:
        """Return the progress after a response from the agent, with the failure times cleared."""
        question = question or self.question
        return replace(
            self, task_id=task_id, has_webhook=has_webhook, failing_since=None, not_before=None, question=question
        )

    def is_over(self, result: Result) -> bool:
        """Return True if the task is terminal or interrupted by a question that the message does not answer."""
        if result.stop_reason == "interrupt" and self.question is not None:
            return question_digest(result) != self.question
        return result.stop_reason is not None

    def missed(
        self, now: float, retry_after: float | None = None, *, unreachable_for: float = math.inf
    ) -> CallProgress:
        """Return the progress after a failed attempt.

        Args:
            now: Current time.
            retry_after: Value of the server's Retry-After header in seconds, or None if the server sent none.
            unreachable_for: Seconds after which the step gives up. One more attempt is made at that time.
        """
        since = now if self.failing_since is None else self.failing_since
        not_before = None if retry_after is None else min(now + retry_after, since + unreachable_for)
        return replace(self, failing_since=since, not_before=not_before)

    def is_deferred(self, now: float) -> bool:
        """Return True if the next request is not due yet. A broker can redeliver a step before its ETA, when the
        visibility timeout expires."""
        return self.not_before is not None and now < self.not_before

    def pause(
        self, now: float, *, timeout: float | None = None, visibility: float | None = None, at_least: float = 0.0
    ) -> float:
        """Return the seconds until the next poll.

        Args:
            now: Current time.
            timeout: Timeout of the step in seconds, or None for no limit. The next poll comes no later than the
                timeout, unless `at_least` is longer.
            visibility: Visibility timeout of the broker in seconds, or None if the broker has none. The visibility
                timeout overrides the other limits.
            at_least: Minimum number of seconds.
        """
        if self.failing_since is not None:
            delay, soonest, latest = (now - self.failing_since) / 2, POLL_INTERVAL_MIN, POLL_INTERVAL_MAX
        elif self.has_webhook:
            delay, soonest, latest = (now - self.began) / 4, WEBHOOK_POLL_INTERVAL_MIN, WEBHOOK_POLL_INTERVAL_MAX
        else:
            delay, soonest, latest = (now - self.began) / 4, POLL_INTERVAL_MIN, POLL_INTERVAL_MAX
        pause = max(soonest, min(delay, latest)) * random.uniform(1 - JITTER, 1 + JITTER)
        if self.not_before is not None:
            pause = max(pause, self.not_before - now)
        if timeout is not None:
            pause = min(pause, max(0.0, self.began + timeout - now))
        pause = max(pause, at_least)
        return pause if visibility is None else min(pause, visibility / POLLS_PER_VISIBILITY_TIMEOUT)


def question_digest(result: Result) -> str | None:
    """Return a digest of the status of a task that waits for its client, or None if the task does not wait."""
    if result.stop_reason != "interrupt" or not isinstance(result.raw, Task):
        return None
    return sha256(result.raw.status.SerializeToString(deterministic=True)).hexdigest()[:DIGEST_LENGTH]
