"""Logs and traces of a run: its beginning, end and errors in the log and, if the process records traces, a span."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import current_task

from ...lifecycle import (
    Canceled,
    Completed,
    Delegated,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
)
from ...store.runs.commands import Claim, RunRef
from ...telemetry.logs import about
from ...telemetry.names import Action, Attribute, SpanName
from ...telemetry.tracing import trace_headers, tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from ...telemetry.spans import Spans

logger = logging.getLogger(__name__)

Perform = Callable[[], Coroutine[Any, Any, Outcome | None]]

OUTCOMES: dict[type[Outcome], str] = {
    Completed: "completed",
    Paused: "paused",
    Canceled: "canceled",
    Failure: "failed",
    Rejection: "rejected",
    Refused: "refused",
    Retried: "retried",
    Suspended: "suspended",
    Delegated: "delegated",
    Superseded: "superseded",
    Lost: "lost",
}
"""Names of outcomes in logs, spans and hooks."""

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
        logger.info("run %s of %s: %s after %.3f s", ref.name, agent, name, seconds, extra=extra)
    return outcome


def report_begin(claim: Claim, agent: str) -> None:
    """Log that the agent of a claimed run begins, and label the current span."""
    spans = tracing()
    if spans is not None:
        spans.label({Attribute.CONTEXT: claim.task.context_id, Attribute.ATTEMPT: claim.attempt})
    extra = about(Action.RUN_BEGUN, claim.ref.name, agent=agent, attempt=claim.attempt, context=claim.task.context_id)
    logger.info("run %s of %s begins, attempt %d", claim.ref.name, agent, claim.attempt, extra=extra)


def report_problem(ref: RunRef, agent: str, problem: str, error: BaseException | None = None) -> str:
    """Log a `problem` of the run, with `error` or the current exception, and return the reference in the log line."""
    reference = uuid4().hex[:12]
    extra = about(Action.RUN_FAILED, ref.name, agent=agent, reference=reference)
    logger.error("run %s: %s [reference %s]", ref.name, problem, reference, exc_info=error or True, extra=extra)
    return reference


def _outcome_name(outcome: Outcome | None) -> str:
    return DROPPED if outcome is None else OUTCOMES[type(outcome)]


def _headers() -> dict[str, Any]:
    """Return the headers of the current Celery message, or an empty dict outside a Celery task."""
    request = current_task.request if current_task else None
    return dict(getattr(request, "headers", None) or {})
