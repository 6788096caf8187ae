"""A post to a webhook, counted, and where this process traces, in a span of its task's trace.

The receiver is told that span (``traceparent``), so what it does belongs to the trace too. It gets random numbers and
nothing else: no ``tracestate``, which is for vendors, and no baggage.
"""

from __future__ import annotations

from dataclasses import replace

from ..clock import SYSTEM_CLOCK
from ..push import Delivered, Gone, Held, Poster, PostRequest, Refused, Result, Retry, Way
from ..store.deliveries import Line
from ..telemetry.names import Attribute
from ..telemetry.tracing import tracing
from .figures import WatcherFigures

OUTCOMES: dict[type[Result], str] = {
    Delivered: "delivered",
    Retry: "failed",
    Gone: "gone",
    Refused: "refused",
    Held: "held",
}
"""What spans and figures call what became of a post."""


async def observed_post(poster: Poster, request: PostRequest, line: Line, figures: WatcherFigures) -> Result:
    """What became of `request`, a post for `line`. It waits for its place before its time begins."""
    way = await poster.way(request.url)
    spans = tracing()
    if spans is None:
        return await _counted(poster, request, way, figures)
    attributes = {Attribute.AGENT: line.agent, Attribute.TASK: line.task_id, Attribute.CONFIG: line.config_id}
    with spans.posting(line.trace, attributes) as (span, headers):
        result = await _counted(poster, replace(request, headers={**request.headers, **headers}), way, figures)
        status = _status(result)
        if status:
            span.set_attribute(str(Attribute.STATUS), status)
        spans.came_to(span, OUTCOMES[type(result)], fine=isinstance(result, Delivered))
    return result


async def _counted(poster: Poster, request: PostRequest, way: Way | Held | Refused, figures: WatcherFigures) -> Result:
    began = SYSTEM_CLOCK.monotonic()
    result = await poster.post(request, way)
    if not isinstance(result, Held):  # nothing was posted
        figures.posted(OUTCOMES[type(result)], SYSTEM_CLOCK.monotonic() - began)
    return result


def _status(result: Result) -> int | None:
    match result:
        case Delivered(status):
            return status
        case Gone(answer):
            return answer.status
        case Retry(_, _, answer) if answer is not None:
            return answer.status
        case _:
            return None
