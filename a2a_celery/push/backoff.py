"""When a delivery that failed is posted again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: a time between 0 and a limit that doubles with each failure, so that not all come back at once.

    All in seconds. With these values a delivery that never arrives is posted about 28 times in its day.
    """

    first: float = 1.0
    """The limit after the first failure."""

    longest: float = 3 * HOUR
    """The limit stops growing here, and no receiver's Retry-After is followed beyond."""

    give_up_after: float = DAY
    """How old a delivery may be. The last post is made when it is that old."""

    random: Callable[[], float] = random.random
    """Gives a number from 0 up to 1."""

    def after(self, failures: int, age: float, asked: float | None = None) -> float | None:
        """Seconds until the next post of a delivery that has failed `failures` times, 1 or more; None: give up.

        `age` is the time since it was first due. `asked` is what the receiver's last answer asked for (Retry-After),
        None if nothing: it is not posted earlier than that, and a little later, since others were told the same.
        """
        left = self.give_up_after - age
        if left <= 0:
            return None
        limit = min(self.longest, self.first * 2.0 ** min(max(failures, 1) - 1, 60))
        delay = self.random() * limit
        if asked is not None and asked > 0:
            wanted = min(asked, self.longest)
            delay = max(delay, wanted + self.random() * min(wanted / 10, 60.0))
        return min(delay, left)
