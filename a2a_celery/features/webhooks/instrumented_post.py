"""Posts to webhooks with metrics and, if tracing is enabled, a span in the trace of the task.

The header ``traceparent`` passes the span to the receiver, whose spans therefore belong to the same trace. The header
contains only random numbers. Baggage and the vendor-specific ``tracestate`` are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...clock import SYSTEM_CLOCK
from ...push import Deferred, Delivered, Gone, Poster, PostRefused, PostRequest, PostResult, Retry, Route
from ...telemetry.names import Attribute
from ...telemetry.tracing import tracing
from ...watcher.metrics import WatcherMetrics
from .deliveries import Attempt, DeliveryCursor

OUTCOMES: dict[type[PostResult], str] = {
    Delivered: "delivered",
    Retry: "failed",
    Gone: "gone",
    PostRefused: "refused",
    Deferred: "deferred",
}
"""Outcomes in spans and metrics, by type of result."""

HOST_REFUSED = "its host was not found or is forbidden for webhooks"
GONE = "answered 410: the receiver accepts no more events"
"""Reasons for failed deliveries, as operators and the owner of a webhook see them."""


@dataclass(frozen=True, slots=True)
class PostReport:
    """Result and duration of one post to a webhook.

    Attributes:
        post_id: Id of the event or ping.
        result: Result of the post.
        seconds: Duration of the post.
    """

    post_id: str
    result: PostResult
    seconds: float = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """Attempt as the owner of the webhook sees it, or None if the post was deferred.

        A host name that does not exist and a host name with a forbidden address result in the same attempt. Otherwise,
        owners could find out which names exist in the network of this watcher.
        """
        match self.result:
            case Deferred():
                return None
            case PostRefused() | Retry(is_host_not_found=True):
                return Attempt(self.post_id, "refused", reason=HOST_REFUSED)
            case Retry(reason):
                pass
            case Gone():
                reason = GONE
            case _:
                reason = ""
        outcome, milliseconds = OUTCOMES[type(self.result)], round(self.seconds * 1000)
        return Attempt(self.post_id, outcome, _status(self.result), milliseconds, reason)


async def make_instrumented_post(
    poster: Poster, request: PostRequest, cursor: DeliveryCursor, metrics: WatcherMetrics, post_id: str
) -> PostReport:
    """Post `request` for `cursor`. The measured duration does not include the wait for a permit."""
    route = await poster.acquire_route(request.url, owner=cursor.owner)
    spans = tracing()
    if spans is None:
        return await _make_counted_post(poster, request, route, metrics, post_id)
    attributes = {Attribute.AGENT: cursor.agent, Attribute.TASK: cursor.task_id, Attribute.CONFIG: cursor.config_id}
    with spans.posting(cursor.trace, attributes) as (span, headers):
        request = replace(request, headers={**request.headers, **headers})
        report = await _make_counted_post(poster, request, route, metrics, post_id)
        result, status = report.result, _status(report.result)
        if status:
            span.set_attribute(str(Attribute.STATUS), status)
        spans.record_outcome(span, OUTCOMES[type(result)], fine=isinstance(result, Delivered))
    return report


async def _make_counted_post(
    poster: Poster, request: PostRequest, route: Route | Deferred | PostRefused, metrics: WatcherMetrics, post_id: str
) -> PostReport:
    started_at = SYSTEM_CLOCK.monotonic()
    result = await poster.post(request, route)
    seconds = SYSTEM_CLOCK.monotonic() - started_at
    if not isinstance(result, Deferred):
        metrics.count_post(OUTCOMES[type(result)], seconds)
    return PostReport(post_id, result, seconds)


def _status(result: PostResult) -> int | None:
    match result:
        case Delivered(status):
            return status
        case Gone(response):
            return response.status
        case Retry(response=response) if response is not None:
            return response.status
        case _:
            return None
