"""Suppression of the SDK's spans in a process that does not trace.

If OpenTelemetry is installed, the SDK starts a span for each step of a request, even without a tracer provider. The
spans take about a seventh of a request's time.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from a2a.utils import telemetry

from .tracing import tracing


def only_where_traced() -> None:
    """Make the SDK create a span only if tracing is configured when the span starts."""
    names = vars(telemetry)
    if isinstance(names["trace"], ModuleType):  # otherwise it is disabled or already replaced
        names["trace"] = _TraceApi(names["trace"])


class _TraceApi:
    """Replacement for the module ``opentelemetry.trace`` in the SDK."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def get_tracer(self, *names: str) -> Any:
        return _NO_OP_TRACER if tracing() is None else self._api.get_tracer(*names)


class _NoOpTracer:
    """Tracer and span that record nothing."""

    def start_as_current_span(self, *_: Any, **__: Any) -> _NoOpTracer:
        return self

    def __enter__(self) -> _NoOpTracer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_attribute(self, *_: Any) -> None:
        pass

    def set_status(self, *_: Any, **__: Any) -> None:
        pass

    def record_exception(self, *_: Any) -> None:
        pass


_NO_OP_TRACER = _NoOpTracer()
