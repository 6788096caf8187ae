"""Logs and traces of a run: its beginning, end and errors in the log and, if the process records traces, a span."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import current_task

from ...lifecycle import (
    Failure,
    Lost,
    Outcome,
    Paused,
    Suspended,
)
from ...lifecycle.outcomes import OUTCOMES
from ...lifecycle.references import RunRef
from ...lifecycle.signals import kind_of_signal
from ...lifecycle.states import AUTH_REQUIRED
from ...store.runs.commands import Claim
from ...telemetry.logs import about
from ...telemetry.names import Action, Attribute, SpanName
from ...telemetry.tracing import trace_headers, tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from ...telemetry.spans import Spans

logger = logging.getLogger(__name__)

Perform = Callable[[], Coroutine[Any, Any, Outcome | None]]

DROPPED = "dropped"
"""Outcome name of a run that this worker did not claim."""


def observe_run(perform: Perform, ref: RunRef, agent: str) -> Coroutine[Any, Any, Outcome | None]:
    """Return the coroutine ``perform()`` of the run `ref`, wrapped in a span if the process records traces.

    Call this function in the thread of the Celery task, which has the Celery message and the span of Celery's
    instrumentation.
    """
    spans = tracing()
    if spans is None:
        return perform()
    return _trace_run(perform, ref, agent, spans, spans.parent_of(trace_headers(_headers())))


async def _trace_run(perform: Perform, ref: RunRef, agent: str, spans: Spans, parent: Context) -> Outcome | None:
    attributes: dict[Attribute, str | int] = {
        Attribute.AGENT: agent,
        Attribute.TASK: ref.task_id,
        Attribute.RUN: ref.run,
        Attribute.CELERY_ID: ref.name,
    }
    span, context = spans.start(SpanName.RUN.format(agent=agent), parent, spans.CONSUMER, attributes)
    outcome: Outcome | None = Lost()  # if the run is cancelled
    try:
        with spans.within(context):
            outcome = await perform()
    finally:
        spans.end(span, _outcome_name(outcome), fine=not isinstance(outcome, Failure | Lost))
    return outcome


def report_end(outcome: Outcome | None, ref: RunRef, agent: str, seconds: float) -> Outcome | None:
    """Log that a run of `agent` ended with `outcome` after `seconds`, and return the outcome. None is not logged."""
    if outcome is not None and logger.isEnabledFor(logging.INFO):
        name = _outcome_name(outcome)
        extra = about(Action.RUN_ENDED, ref.name, agent=agent, outcome=name, seconds=round(seconds, 3))
        reason = _wait_reason(outcome)
        logger.info(
            "run %s of %s: %s after %.3f s%s", ref.name, agent, name, seconds, reason and f": {reason}", extra=extra
        )
    return outcome


def _wait_reason(outcome: Outcome) -> str:
    """Return what the task waits for after a run with `outcome`, or "" if it does not wait."""
    match outcome:
        case Paused(state):
            return "asks for an authorization" if state == AUTH_REQUIRED else "asks for input"
        case Suspended(when, signal):
            until = f"until {datetime.fromisoformat(when).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if when else ""
            kind, name = kind_of_signal(signal)
            target = f"for the signal {name!r}" if kind == "signal" else f"for the {kind} task {name}"
            return " ".join(filter(None, ("waits", target if signal else "", until)))
        case _:
            return ""


def report_begin(claim: Claim, agent: str) -> None:
    """Log that the agent of a claimed run begins, and label the current span."""
    run, attempt, context_id = claim.ref.name, claim.turn.attempt, claim.task.context_id
    spans = tracing()
    if spans is not None:
        spans.label({Attribute.CONTEXT: context_id, Attribute.ATTEMPT: attempt})
    extra = about(Action.RUN_BEGUN, run, agent=agent, attempt=attempt, context=context_id)
    logger.info("run %s of %s begins, attempt %d", run, agent, attempt, extra=extra)


def report_problem(
    ref: RunRef, agent: str, problem: str, error: BaseException | None = None, *, level: int = logging.ERROR
) -> str:
    """Log a `problem` of the run, with `error` or the current exception, and return the reference in the log line."""
    reference = uuid4().hex[:12]
    extra = about(Action.RUN_FAILED, ref.name, agent=agent, reference=reference)
    logger.log(level, "run %s: %s [reference %s]", ref.name, problem, reference, exc_info=error or True, extra=extra)
    return reference


def _outcome_name(outcome: Outcome | None) -> str:
    return DROPPED if outcome is None else OUTCOMES[type(outcome)]


def _headers() -> dict[str, Any]:
    """Return the headers of the current Celery message, or an empty dict outside a Celery task."""
    request = current_task.request if current_task else None
    return dict(getattr(request, "headers", None) or {})
