"""Publishing options of one run: the route that its agent chose, and the times that its client set.

The store keeps the options with the run, so that gateway, worker and watcher publish the run in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..agents import CELERY_OPTIONS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MAX_PRIORITY = 255

LONGEST_ETA = timedelta(minutes=10)
"""How long before its time a run is published. A worker keeps the message of a task that has an ``eta`` unacknowledged:
after half an hour RabbitMQ ends the worker's channel for that, after an hour Redis delivers it a second time."""

EXPIRY_GRACE = timedelta(seconds=2)
"""How long a worker has to say that a run has expired; a broker may have dropped it, so that no worker ever will."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a plain Celery task: its name and keyword arguments, JSON values."""

    task: str
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Celery options of one run, which win over its agent's, and its times.

    It begins at `not_before` at the earliest, and if it has not begun by `not_after`, it shall not; None: no such time.
    A run of a plain Celery task has its `call`; None: it runs an agent. `retries` counts the retries before it.
    """

    celery: Mapping[str, Any] = field(default_factory=dict)
    not_before: datetime | None = None
    not_after: datetime | None = None
    call: Call | None = None
    retries: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    """The trace it belongs to, as headers (``telemetry.tracing``); empty for none."""

    @classmethod
    def of(
        cls,
        route: Any,
        not_before: datetime | None,
        not_after: datetime | None,
        now: datetime,
        call: Call | None = None,
    ) -> RunOptions:
        """What a route's answer and the client's times make. ``expires`` becomes a time, so that publishing a run again
        does not prolong it; it counts from the time at which the run may begin.

        Raises:
            TypeError, ValueError: the answer is no mapping of Celery options.
        """
        if not isinstance(route, Mapping):
            raise TypeError(f"a route gives a mapping, not {route!r}")
        celery = dict(route)
        for name, value in celery.items():
            if name not in CELERY_OPTIONS:
                raise ValueError(f"a route gave {name!r}; known: {', '.join(sorted(CELERY_OPTIONS))}")
            if not _fits(name, value):
                raise ValueError(f"a route gave {name} = {value!r}")
        if "expires" in celery:
            expires = max(now, not_before or now) + timedelta(seconds=celery.pop("expires"))
            not_after = min(expires, not_after or expires)
        return cls(celery, not_before, not_after, call)

    def to_json(self) -> bytes:
        """The form that is stored with the run; b"" for no options at all. Scripts read when it
        may begin and its trace, in that order from the first byte on (see ``scripts/lib/options.lua``)."""
        fields: dict[str, Any] = {}
        if self.not_before is not None:
            fields["not_before_us"] = (self.not_before - EPOCH) // MICROSECOND
        if self.trace:
            fields["trace"] = dict(self.trace)
        if self.celery:
            fields["celery"] = dict(self.celery)
        if self.not_after is not None:
            fields["not_after_us"] = (self.not_after - EPOCH) // MICROSECOND
        if self.call is not None:
            fields["call"] = {"task": self.call.task, "kwargs": dict(self.call.kwargs)}
        if self.retries:
            fields["retries"] = self.retries
        return json.dumps(fields, separators=(",", ":")).encode() if fields else b""

    @classmethod
    def from_json(cls, stored: bytes) -> RunOptions:
        """Parse the output of `to_json`."""
        fields = json.loads(stored) if stored else {}
        times = _time(fields.get("not_before_us")), _time(fields.get("not_after_us"))
        call = fields.get("call")
        rest = fields.get("retries", 0), fields.get("trace", {})
        return cls(fields.get("celery", {}), *times, Call(**call) if call else None, *rest)

    def over(self, agent: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of ``apply_async``, with the `agent`'s own options where the run has none."""
        options = {**agent, **self.celery}
        if self.not_before is not None:
            options["eta"] = self.not_before
            if isinstance(options.get("expires"), int | float):
                options["expires"] = self.not_before + timedelta(seconds=options["expires"])
        if self.not_after is not None:
            options["expires"] = self.not_after
        return options

    def held_for(self, now: datetime) -> timedelta:
        """How long the store keeps the run for itself, before a watcher publishes it; zero for one that is not held."""
        return max(timedelta(0), (self.not_before or now) - now - LONGEST_ETA)

    def again_in(self, now: datetime, wait: timedelta) -> timedelta:
        """How long after `now` an unclaimed run is looked at again: `wait` after it may begin, or when it expires."""
        again = max(now, self.not_before or now) + wait
        if self.not_after is not None:
            again = min(again, max(now, self.not_after) + EXPIRY_GRACE)
        return again - now

    def without_past_times(self, now: datetime) -> RunOptions:
        """Return these options without a `not_before` that has passed by `now`.

        A worker compares the time in a message with its own clock. One whose clock is a day behind would keep a run for
        that day whose time has come.
        """
        if self.not_before is None or self.not_before > now:
            return self
        return replace(self, not_before=None)

    def has_expired(self, now: datetime) -> bool:
        """Return True if the run should have begun by `now`, and a worker has had time to report that it expired."""
        return self.not_after is not None and now >= self.not_after + EXPIRY_GRACE


def _fits(name: str, value: Any) -> bool:
    if name == "expires":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 10 * 365 * 86400
    if name == "priority":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY
    return isinstance(value, str) and bool(value)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + micros * MICROSECOND
