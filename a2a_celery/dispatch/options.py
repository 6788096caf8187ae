"""Publishing options of a run, with the agent's route and the client's times.

The store saves the options with the run, so that gateway, worker and watcher publish the run in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from kombu.serialization import registry

from ..agents import CELERY_OPTIONS, Agent
from ..errors import ConfigError
from ..lifecycle.events import EPOCH, MICROSECOND
from ..settings import Settings

MAX_PRIORITY = 255

LONGEST_ETA = timedelta(minutes=10)
"""Maximum time between the publishing of a run and its start. A worker does not acknowledge a message with an ``eta``
before the start. RabbitMQ then closes the worker's channel after half an hour, and Redis redelivers the message after
an hour."""

FIRST_POLL_AFTER = 1.0
"""Seconds after which a watcher polls the result of a plain Celery task for the first time."""

EXPIRY_GRACE = timedelta(seconds=2)
"""Time for a worker to report an expired run. If the broker drops the expired message, no worker reports the run."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call to a plain Celery task, with the task's name and the keyword arguments as JSON values.

    Attributes:
        polled: Watchers must poll the result of a worker without this package, because the result backend does not
            notify them.
    """

    task: str
    kwargs: Mapping[str, Any]
    polled: bool = False


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Celery options and times of one run, which take precedence over the agent's options.

    Attributes:
        celery: Options for ``apply_async``.
        not_before: Earliest start, or None.
        not_after: Latest start, or None.
        call: Call to a plain Celery task, or None for a run of an agent.
        retries: Number of earlier retries.
        trace: Headers of the trace to which the run belongs (``telemetry.tracing``), or empty.
    """

    celery: Mapping[str, Any] = field(default_factory=dict)
    not_before: datetime | None = None
    not_after: datetime | None = None
    call: Call | None = None
    retries: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        route: Any,
        not_before: datetime | None,
        not_after: datetime | None,
        now: datetime,
        call: Call | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> RunOptions:
        """Return the options of a run.

        ``expires``, which is relative to the earliest start, is converted to a point in time, so that publishing the
        run again does not postpone the expiry.

        Args:
            route: Return value of the agent's `route`.
            not_before: Earliest start that the client requests, or None.
            not_after: Latest start that the client requests, or None.
            now: Current time.
            call: Call to a plain Celery task, or None for a run of an agent.
            trace: Headers of the trace to which the run belongs, or None.

        Raises:
            TypeError: `route` is not a mapping.
            ValueError: An option is unknown or invalid.
        """
        if not isinstance(route, Mapping):
            raise TypeError(f"a route returns a mapping, not {route!r}")
        celery = dict(route)
        for name, value in celery.items():
            if name not in CELERY_OPTIONS:
                raise ValueError(f"a route returned {name!r}; known: {', '.join(sorted(CELERY_OPTIONS))}")
            if not _fits(name, value):
                raise ValueError(f"a route returned {name} = {value!r}")
        if "expires" in celery:
            expires = max(now, not_before or now) + timedelta(seconds=celery.pop("expires"))
            not_after = min(expires, not_after or expires)
        return cls(celery, not_before, not_after, call, trace=trace or {})

    def to_json(self) -> bytes:
        """Return the stored form of the options, or b"" for default options.

        Scripts read `not_before` and the trace from the first bytes, in this order (see ``scripts/lib/options.lua``).
        """
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
            if self.call.polled:
                fields["call"]["polled"] = True
        if self.retries:
            fields["retries"] = self.retries
        return json.dumps(fields, separators=(",", ":")).encode() if fields else b""

    @classmethod
    def from_json(cls, content: bytes) -> RunOptions:
        """Parse the output of `to_json`."""
        fields = json.loads(content) if content else {}
        times = _time(fields.get("not_before_us")), _time(fields.get("not_after_us"))
        call = fields.get("call")
        rest = fields.get("retries", 0), fields.get("trace", {})
        return cls(fields.get("celery", {}), *times, Call(**call) if call else None, *rest)

    def resubmitted(self) -> RunOptions:
        """Return the options for the first run of a resubmitted task. The options omit the client's times, which may
        have passed, and the number of retries."""
        return replace(self, not_before=None, not_after=None, retries=0)

    def over(self, agent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for ``apply_async``. `agent` contains the agent's options, which are the defaults."""
        options = {**agent, **self.celery}
        if self.not_before is not None:
            options["eta"] = self.not_before
            if isinstance(options.get("expires"), int | float):
                options["expires"] = self.not_before + timedelta(seconds=options["expires"])
        if self.not_after is not None:
            options["expires"] = self.not_after
        return options

    def publish_delay(self, now: datetime) -> timedelta:
        """Return the time until a watcher publishes the run, or 0 if the run can be published at once."""
        return max(timedelta(0), (self.not_before or now) - now - LONGEST_ETA)

    def next_check_in(self, now: datetime, wait: timedelta) -> timedelta:
        """Return the time from `now` until an unclaimed run is checked again.

        The run is checked `wait` after its earliest start, or when it expires, whichever is earlier.
        """
        check_at = max(now, self.not_before or now) + wait
        if self.not_after is not None:
            check_at = min(check_at, max(now, self.not_after) + EXPIRY_GRACE)
        return check_at - now

    def republish_in(self, now: datetime, settings: Settings) -> int:
        """Return the µs from `now` until a watcher publishes this run again if no worker has claimed it.

        A plain Celery task may run in a worker without this package. Such a worker does not claim runs, so a watcher
        waits for `redispatch_after`, or polls the result earlier if the result backend does not notify watchers.
        """
        wait = settings.redispatch_after
        if self.call is None:
            wait = min(settings.lease_ttl, wait)
        elif self.call.polled:
            wait = min(FIRST_POLL_AFTER, wait)
        return self.next_check_in(now, timedelta(seconds=wait)) // MICROSECOND

    def without_past_times(self, now: datetime) -> RunOptions:
        """Return these options without `not_before` if that time has passed at `now`.

        A worker compares the time in a message with its own clock. A worker whose clock is a day slow would delay the
        run by a day.
        """
        if self.not_before is None or self.not_before > now:
            return self
        return replace(self, not_before=None)

    def has_expired(self, now: datetime) -> bool:
        """Return True if the run has expired at `now` and a worker had time to report its expiry."""
        return self.not_after is not None and now >= self.not_after + EXPIRY_GRACE


DEFAULT_OPTIONS = RunOptions()
"""Options of a run that is published with the agent's options."""


def _fits(name: str, value: Any) -> bool:
    if name == "expires":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 10 * 365 * 86400
    if name == "priority":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY
    return isinstance(value, str) and bool(value)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + micros * MICROSECOND


def require_readable(app: Celery, agents: Iterable[Agent]) -> None:
    """Check that the workers of `app` accept the serializers of the messages for `agents`.

    Workers silently drop messages with other serializers.

    Raises:
        ConfigError: A serializer is not installed or not accepted. The message states the serializer and the remedy.
    """
    _require(app, app.conf.task_serializer, "task_serializer")
    for agent in agents:
        if agent.kind == "task":  # Celery sets a task's serializer to the app's at the first access
            serializer = agent.code.serializer or app.conf.task_serializer
            _require(app, serializer, f"the serializer of task {agent.code.name}, which is a2a.expose'd,")


def _require(app: Celery, serializer: str, owner: str) -> None:
    types: dict[str, str] = registry.name_to_type
    if serializer not in types:
        remedy = "call app.setup_security()" if serializer == "auth" else "install it"
        raise ConfigError(f"{owner} is {serializer!r}, which kombu does not know: {remedy}")
    accepted_types = list(app.conf.accept_content)
    if {serializer, types[serializer]}.isdisjoint(accepted_types):
        raise ConfigError(
            f"{owner} is {serializer!r}, and workers accept {', '.join(accepted_types)} only (accept_content): "
            "they would drop each run. Configure the app before its tasks are exposed, with both settings alike"
        )
