"""Spans, where there is somebody to make them: the one module that knows OpenTelemetry. See ``tracing``.

A span of ours is the child of the one at hand: so instrumentations of ASGI servers, of Celery and of the SDK may be on
as well, and theirs and ours are one tree.
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
from .tracing import carried

__all__ = ["Span", "Spans", "spans_of"]

_W3C = TraceContextTextMapPropagator()

Attributes = Mapping[Attribute, str | int]


class Spans:
    """Makes the spans of this process."""

    CONSUMER = SpanKind.CONSUMER

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("a2a_celery")

    def here(self) -> Context:
        """The context at hand."""
        return contexts.get_current()

    def current(self) -> dict[str, str]:
        """The span at hand, as headers; empty without one."""
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return headers

    def arriving(self, headers: Mapping[str, str]) -> Context:
        """Where work belongs that came with `headers` (names in lower case): to the span at hand, if an
        instrumentation has made one, else to theirs."""
        here = contexts.get_current()
        if trace.get_current_span(here).get_span_context().is_valid:
            return here
        return _W3C.extract(carried(headers), here)

    @contextmanager
    def within(self, context: Context) -> Iterator[None]:
        """A block in which `context` is at hand. Not around a ``yield``."""
        token = contexts.attach(context)
        try:
            yield
        finally:
            contexts.detach(token)

    def began(self, name: str, parent: Context, kind: SpanKind, attributes: Attributes) -> tuple[Span, Context]:
        """A span that has begun, and the context in which it is at hand. It must be ended."""
        labels = {str(key): value for key, value in attributes.items()}
        span = self._tracer.start_span(name, parent, kind, labels)
        return span, trace.set_span_in_context(span, parent)

    @contextmanager
    def spanning(
        self, name: str, attributes: Attributes, *, parent: Context | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """A block in a span; what it raises is noted there, by its kind: its text may be what a client said."""
        span, context = self.began(name, contexts.get_current() if parent is None else parent, kind, attributes)
        try:
            with self.within(context):
                yield span
        except BaseException as e:
            failed(span, type(e).__name__)
            raise
        finally:
            span.end()

    def ended(self, span: Span, outcome: str, *, fine: bool) -> None:
        """Ends `span`, which came to `outcome`."""
        self.came_to(span, outcome, fine=fine)
        span.end()

    def came_to(self, span: Span, outcome: str, *, fine: bool) -> None:
        """Says in `span` what it came to."""
        span.set_attribute(str(Attribute.OUTCOME), outcome)
        if not fine:
            failed(span, outcome)

    def requested(self, operation: str, agent: str, headers: Mapping[str, str]) -> tuple[Span, Context]:
        """The span of a client's request. A server's span, unless somebody else's is around it."""
        parent = self.arriving(headers)
        around = trace.get_current_span(parent).get_span_context()
        kind = SpanKind.INTERNAL if around.is_valid and not around.is_remote else SpanKind.SERVER
        attributes: Attributes = {Attribute.AGENT: agent, Attribute.OPERATION: operation}
        return self.began(SpanName.REQUEST.format(operation=operation), parent, kind, attributes)

    @contextmanager
    def publishing(self, agent: str, celery_id: str, kept: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """A block that hands a run to the broker; gives the headers that its message shall have.

        The trace that was `kept` with the run counts, whoever publishes it.
        """
        attributes: Attributes = {Attribute.AGENT: agent, Attribute.CELERY_ID: celery_id}
        parent = _W3C.extract(kept, Context())
        name = SpanName.PUBLISH.format(agent=agent)
        with self.spanning(name, attributes, parent=parent, kind=SpanKind.PRODUCER):
            yield self.current()

    @contextmanager
    def posting(self, traceparent: str, attributes: Attributes) -> Iterator[tuple[Span, dict[str, str]]]:
        """A block that posts to a webhook, in the trace `traceparent` ("" for a new one); gives the span, and the
        headers that name it, if it has an id. What vendors keep beside (``tracestate``) is nothing for a receiver."""
        parent = _W3C.extract({"traceparent": traceparent}, Context())
        with self.spanning(SpanName.POST, attributes, parent=parent, kind=SpanKind.CLIENT) as span:
            yield span, {name: value for name, value in self.current().items() if name == "traceparent"}

    def label(self, attributes: Attributes) -> None:
        """Labels the span at hand."""
        span = trace.get_current_span()
        for key, value in attributes.items():
            span.set_attribute(str(key), value)

    def transition(self, fields: Mapping[str, str | int | float | bool | None], at_us: int) -> None:
        """Notes in the span at hand that the run's execution changed its state, at so many µs since the epoch."""
        span = trace.get_current_span()
        if span.is_recording():
            labels = {f"a2a.{name}": value for name, value in fields.items() if value is not None}
            span.add_event(SpanEvent.EXECUTION, labels, at_us * 1000)

    def appended(self, version: int) -> None:
        """Notes in the span at hand that events were written to the log, up to `version`."""
        trace.get_current_span().add_event(SpanEvent.APPENDED, {str(Attribute.VERSION): version})


def failed(span: Span, why: str) -> None:
    """Marks `span` as failed."""
    span.set_status(Status(StatusCode.ERROR, why))


@lru_cache(maxsize=4)
def spans_of(provider: trace.TracerProvider) -> Spans:
    """The spans of `provider`."""
    return Spans(provider)
