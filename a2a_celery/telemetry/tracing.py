"""Span factory of this process, and propagation of traces with runs.

Tracing is enabled in a process that has configured a tracer provider, with ``opentelemetry-instrument`` or in code. The
check costs one dictionary lookup. This package imports OpenTelemetry only if tracing is enabled.

The stored options and the message of a run contain W3C's ``traceparent`` and ``tracestate``. Baggage is omitted,
because it may contain client content.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spans import Spans

CARRIED = ("traceparent", "tracestate")
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
LONGEST_STATE = 512
"""Maximum length of a ``tracestate`` that is propagated (W3C Trace Context, 3.3.1.5)."""


def tracing() -> Spans | None:
    """Return the span factory, or None if tracing is not configured in this process."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    from .spans import spans_of  # noqa: PLC0415 - needs OpenTelemetry, which is an extra

    return spans_of(provider)


def current_span_context() -> AbstractContextManager[None]:
    """Return a context manager that makes the caller's current span current in another thread."""
    spans = tracing()
    return nullcontext() if spans is None else spans.within(spans.here())


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the valid trace headers in `headers` (names in lower case).

    Source: W3C Trace Context, 3.2 and 3.3.
    """
    parent, state = (str(headers.get(name) or "") for name in CARRIED)
    if TRACEPARENT.fullmatch(parent) is None:
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if 0 < len(state) <= LONGEST_STATE else {})


def trace_to_keep(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers for a run that the current request creates.

    The result contains the headers of the current span, or the client's `headers` if there is no span.
    """
    spans = tracing()
    return trace_headers(headers) if spans is None else trace_headers(spans.current()) or trace_headers(headers)
