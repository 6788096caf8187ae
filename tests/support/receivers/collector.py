"""Fake OpenTelemetry collector that stores the spans it receives over OTLP/HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.waiting import eventually


@dataclass(frozen=True)
class CollectedSpan:
    """Exported span. `parent` is "" for a root span."""

    service: str
    scope: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    attributes: dict[str, Any] = field(hash=False)
    events: tuple[str, ...]
    has_failed: bool


class Collector:
    """HTTP server that stores the received spans."""

    def __init__(self) -> None:
        self._spans: list[CollectedSpan] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans_of(self, trace: str) -> list[CollectedSpan]:
        """Return the received spans of `trace`."""
        return [span for span in tuple(self._spans) if span.trace == trace]

    def wait_for(self, trace: str, *names: str) -> list[CollectedSpan]:
        """Wait until the spans of `trace` include all of `names`, and return them."""

        def complete() -> list[CollectedSpan] | None:
            spans = self.spans_of(trace)
            return spans if set(names) <= {span.name for span in spans} else None

        try:
            return eventually(complete, what=f"spans {names} arrive")
        except AssertionError as e:
            raise AssertionError(f"{e}; there are {sorted(span.name for span in self.spans_of(trace))}") from e

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                spans.extend(read(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Suppress the access log."""

        return Handler


def read(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    """Yield the spans of an export request."""
    for resource_spans in request.resource_spans:
        service = _values(resource_spans.resource.attributes).get("service.name", "")
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield CollectedSpan(
                    service,
                    scope_spans.scope.name,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    _values(span.attributes),
                    tuple(event.name for event in span.events),
                    span.status.code == 2,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value") or "string_value") for it in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def path_to(span: CollectedSpan, spans: list[CollectedSpan]) -> list[CollectedSpan]:
    """Return the path from the root span to `span`, as far as `spans` contains the parents."""
    spans_by_id = {it.id: it for it in spans}
    path = [span]
    while path[0].parent in spans_by_id:
        path.insert(0, spans_by_id[path[0].parent])
    return path
