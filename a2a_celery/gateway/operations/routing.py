"""Route and schedule of a message's run: the agent's route, and the times that a client may set.

A client sets times in the metadata of its request, if the agent's option ``scheduling`` allows it::

    "metadata": {"celery_schedule": {"not_before": "2030-01-01T08:00:00Z", "not_after": "2030-01-01T12:00:00Z"}}
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from a2a.types import SendMessageRequest
from google.protobuf.json_format import MessageToDict

from ...agents import Agent
from ...caller import Caller
from ...clock import SYSTEM_CLOCK
from ...dispatch import Call, RunOptions
from ...telemetry.tracing import trace_to_keep
from ..protocol_errors import invalid

SCHEDULE = "celery_schedule"
"""Key of the request's metadata for the schedule of the message."""

TIMES = ("not_before", "not_after")


def run_options(agent: Agent, request: SendMessageRequest, caller: Caller, call: Call | None = None) -> RunOptions:
    """Return how to publish the run of `request`. A plain Celery task receives `call`.

    Raises:
        InvalidParamsError: The client's times are not allowed or not valid.
        Exception: The agent's route failed; TypeError or ValueError for an invalid route.
    """
    now = SYSTEM_CLOCK.now()
    times = _times(agent, request, now)
    given: Any = {}
    if agent.route is not None:
        shown = SendMessageRequest()
        shown.CopyFrom(request)  # what a route does to it stays there
        given = agent.route(shown, caller)
    options = RunOptions.of(given, times.get("not_before"), times.get("not_after"), now, call)
    return replace(options, trace=trace_to_keep(caller.headers))


def _times(agent: Agent, request: SendMessageRequest, now: datetime) -> dict[str, datetime]:
    field = f"metadata.{SCHEDULE}"
    if SCHEDULE not in request.metadata.fields:
        return {}
    if not agent.scheduling:
        raise invalid(field, "This agent does not let its clients say when a message runs.")
    given = MessageToDict(request.metadata)[SCHEDULE]
    if not isinstance(given, dict) or not given or set(given) - set(TIMES):
        raise invalid(field, f"An object with {' or '.join(TIMES)}, or both.")
    times = {name: _time(f"{field}.{name}", value) for name, value in given.items()}
    earliest = times.get("not_before", now)
    if agent.idempotency_window is None:  # else it may have come in time before
        earliest = max(now, earliest)
    if times.get("not_after", datetime.max.replace(tzinfo=UTC)) <= earliest:
        raise invalid(f"{field}.not_after", "A time that is still to come, and behind not_before.")
    return times


def _time(field: str, value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(field, "A time as ISO 8601 writes it, with its offset from UTC: 2030-01-01T08:00:00Z.")
