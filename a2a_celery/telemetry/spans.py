"""Spans of this package. No other module imports OpenTelemetry at runtime; see ``tracing``.

A span is a child of the current span, so the spans of ASGI, Celery and SDK instrumentations belong to the same trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .names import Attribute, SpanEvent, SpanName
from .tracing import trace_headers

__all__ = ["Span", "Spans", "spans_of"]

_W3C = TraceContextTextMapPropagator()

Attributes = Mapping[Attribute, str | int]


class Spans:
    """Factory for the spans of this process."""

    CONSUMER = SpanKind.CONSUMER

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("a2a_celery")

    def here(self) -> Context:
        return contexts.get_current()

    def current(self) -> dict[str, str]:
        """Return the trace headers of the current span, or an empty dict if there is no span."""
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return headers

    def parent_of(self, headers: Mapping[str, str]) -> Context:
        """Return the parent context for the span of a request with `headers` (names in lower case).

        The parent is the current span if an instrumentation has started one. Otherwise, the parent is the span in the
        headers.
        """
        context = contexts.get_current()
        if trace.get_current_span(context).get_span_context().is_valid:
            return context
        return _W3C.extract(trace_headers(headers), context)

    @contextmanager
    def within(self, context: Context) -> Iterator[None]:
        """Make `context` current in the ``with`` block. The block must not contain a ``yield``."""
        token = contexts.attach(context)
        try:
            yield
        finally:
            contexts.detach(token)

    def start(self, name: str, parent: Context, kind: SpanKind, attributes: Attributes) -> tuple[Span, Context]:
        """Start a span, which the caller must end. Return the span and the context in which it is current."""
        labels = {str(key): value for key, value in attributes.items()}
        span = self._tracer.start_span(name, parent, kind, labels)
        return span, trace.set_span_in_context(span, parent)

    @contextmanager
    def spanning(
        self, name: str, attributes: Attributes, *, parent: Context | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Run the ``with`` block in a span.

        Only the class of an exception is recorded, because its text may contain client content.
        """
        span, context = self.start(name, contexts.get_current() if parent is None else parent, kind, attributes)
        try:
            with self.within(context):
                yield span
        except BaseException as e:
            mark_failed(span, type(e).__name__)
            raise
        finally:
            span.end()

    def end(self, span: Span, outcome: str, *, fine: bool) -> None:
        """Record the outcome in `span`, as `record_outcome` does, and end the span."""
        self.record_outcome(span, outcome, fine=fine)
        span.end()

    def record_outcome(self, span: Span, outcome: str, *, fine: bool) -> None:
        """Record the outcome in `span`. If `fine` is False, the status of the span is ERROR."""
        span.set_attribute(str(Attribute.OUTCOME), outcome)
        if not fine:
            mark_failed(span, outcome)

    def start_request(self, operation: str, agent: str, headers: Mapping[str, str]) -> tuple[Span, Context]:
        """Start the span of a client's request. The kind is SERVER, or INTERNAL if the parent is a local span."""
        parent = self.parent_of(headers)
        around = trace.get_current_span(parent).get_span_context()
        kind = SpanKind.INTERNAL if around.is_valid and not around.is_remote else SpanKind.SERVER
        attributes: Attributes = {Attribute.AGENT: agent, Attribute.OPERATION: operation}
        return self.start(SpanName.REQUEST.format(operation=operation), parent, kind, attributes)

    @contextmanager
    def publishing(self, agent: str, celery_id: str, stored: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Run the ``with`` block, which publishes a run, in a span of the trace that is stored with the run.

        Yields:
            The trace headers for the message of the run.
        """
        attributes: Attributes = {Attribute.AGENT: agent, Attribute.CELERY_ID: celery_id}
        parent = _W3C.extract(stored, Context())
        name = SpanName.PUBLISH.format(agent=agent)
        with self.spanning(name, attributes, parent=parent, kind=SpanKind.PRODUCER):
            yield self.current()

    @contextmanager
    def posting(self, traceparent: str, attributes: Attributes) -> Iterator[tuple[Span, dict[str, str]]]:
        """Run the ``with`` block, which sends a post, in a span of the trace `traceparent` ("" for a new trace).

        Yields:
            The span and its trace headers, without the vendor-specific ``tracestate``.
        """
        parent = _W3C.extract({"traceparent": traceparent}, Context())
        with self.spanning(SpanName.POST, attributes, parent=parent, kind=SpanKind.CLIENT) as span:
            yield span, {name: value for name, value in self.current().items() if name == "traceparent"}

    def label(self, attributes: Attributes) -> None:
        """Set attributes of the current span."""
        span = trace.get_current_span()
        for key, value in attributes.items():
            span.set_attribute(str(key), value)

    def transition(self, fields: Mapping[str, str | int | float | bool | None], at_us: int) -> None:
        """Record a transition of the run's execution in the current span, with the time `at_us` in µs since 1970."""
        span = trace.get_current_span()
        if span.is_recording():
            labels = {f"a2a.{name}": value for name, value in fields.items() if value is not None}
            span.add_event(SpanEvent.EXECUTION, labels, at_us * 1000)

    def record_append(self, version: int) -> None:
        """Record in the current span that events up to `version` were written to the log."""
        trace.get_current_span().add_event(SpanEvent.APPENDED, {str(Attribute.VERSION): version})


def mark_failed(span: Span, reason: str) -> None:
    span.set_status(Status(StatusCode.ERROR, reason))


@lru_cache(maxsize=4)
def spans_of(provider: trace.TracerProvider) -> Spans:
    return Spans(provider)
