"""How far a call has come between two looks at its task, and when to look again. It travels with the Celery message."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

SOONEST = 0.5
LATEST = 30.0
"""Seconds between two looks: a quarter of how long the task has been under way, within these."""

TOLD_SOONEST = 60.0
TOLD_LATEST = 600.0
"""The same where a webhook tells us: looks are for posts that never come."""

JITTER = 0.2
"""Of an interval, either way: calls that began together don't stay together."""

LOOKS_PER_SECOND = 10
"""Of all steps that one process puts off: a look takes a slot for some ten milliseconds, and other work waits."""

PER_VISIBILITY = 3.0
"""How many looks there are at least in a Redis broker's visibility timeout."""


class Pace:
    """Puts the looks of one process so far apart that other work finds its slot: a step that is put off takes the next
    free place. So many steps look rarely each, and few as soon as they like."""

    def __init__(self) -> None:
        self._taken_until = 0.0

    def wait(self, now: float) -> float:
        """Takes a place; gives the seconds until it."""
        self._taken_until = max(self._taken_until, now) + 1 / LOOKS_PER_SECOND
        return self._taken_until - now


@dataclass(frozen=True, slots=True)
class Progress:
    """Times are in seconds since the epoch, by the clock of whichever worker looked.

    Attributes:
        began: when the step was first run.
        task_id: the remote task; "" while the message has no answer.
        told: whether the agent took our webhook.
        failing_since: since when it has not been reached; None: it was, the last time.
        not_before: until when its server wants to be left alone; None: it does not say.
    """

    began: float
    task_id: str = ""
    told: bool = False
    failing_since: float | None = None
    not_before: float | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any] | None, now: float) -> Self:
        """What `to_dict` gave; None: the step begins `now`."""
        return cls(began=now) if data is None else cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def reached(self, task_id: str, *, told: bool) -> Progress:
        """The agent has answered: the task goes on."""
        return replace(self, task_id=task_id, told=told, failing_since=None, not_before=None)

    def missed(self, now: float, asked: float | None = None, *, unreachable_for: float = math.inf) -> Progress:
        """The agent could not be reached, or `asked` for so many seconds to be left alone. It is tried once more before
        it is given up, after `unreachable_for` seconds of that."""
        since = now if self.failing_since is None else self.failing_since
        not_before = None if asked is None else min(now + asked, since + unreachable_for)
        return replace(self, failing_since=since, not_before=not_before)

    def is_held(self, now: float) -> bool:
        """Whether it is too early to ask again: a broker's visibility timeout brings a step back before its time."""
        return self.not_before is not None and now < self.not_before

    def pause(
        self, now: float, *, timeout: float | None = None, visibility: float | None = None, at_least: float = 0.0
    ) -> float:
        """Seconds until the next look: not beyond the step's `timeout`, but for `at_least`; `visibility` is the
        broker's timeout, if it has one, which wins over both."""
        if self.failing_since is not None:
            wanted, soonest, latest = (now - self.failing_since) / 2, SOONEST, LATEST
        elif self.told:
            wanted, soonest, latest = (now - self.began) / 4, TOLD_SOONEST, TOLD_LATEST
        else:
            wanted, soonest, latest = (now - self.began) / 4, SOONEST, LATEST
        pause = max(soonest, min(wanted, latest)) * random.uniform(1 - JITTER, 1 + JITTER)
        if self.not_before is not None:
            pause = max(pause, self.not_before - now)
        if timeout is not None:
            pause = min(pause, max(0.0, self.began + timeout - now))
        pause = max(pause, at_least)
        return pause if visibility is None else min(pause, visibility / PER_VISIBILITY)
