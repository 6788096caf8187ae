"""Retry schedule of failed deliveries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: a random delay below a limit that doubles with each failure.

    All times are in seconds. With the default values, a delivery that always fails is posted about 28 times in a day.
    """

    first: float = 1.0
    """Limit after the first failure."""

    longest: float = 3 * HOUR
    """Maximum limit, and maximum Retry-After of a receiver that is followed."""

    give_up_after: float = DAY
    """Maximum age of a delivery. The last post is made at this age."""

    random: Callable[[], float] = random.random
    """Function that returns a number from 0 up to 1."""

    def delay(self, failures: int, age: float, retry_after: float | None = None) -> float | None:
        """Return the seconds until the next post of a failed delivery, or None to give up.

        Args:
            failures: Consecutive failures, at least 1.
            age: Seconds since the delivery was first due.
            retry_after: Seconds of the receiver's Retry-After, or None. The next post is not earlier, and a little
                later, because other deliveries may have received the same Retry-After.
        """
        remaining = self.give_up_after - age
        if remaining <= 0:
            return None
        limit = min(self.longest, self.first * 2.0 ** min(max(failures, 1) - 1, 60))
        delay = self.random() * limit
        if retry_after is not None and retry_after > 0:
            minimum = min(retry_after, self.longest)
            delay = max(delay, minimum + self.random() * min(minimum / 10, 60.0))
        return min(delay, remaining)
