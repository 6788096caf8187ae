"""Whether this process traces, and what of a trace travels with a run.

A process traces when it has set a tracer provider up: ``opentelemetry-instrument``, or code of its own. That is asked
where work begins, and costs a look into a dictionary; this module imports nothing of OpenTelemetry before.

What travels is W3C's ``traceparent`` and ``tracestate`` and nothing else: no baggage, which may be what a client said.
It goes with the run's options in the store, and in the message's headers from there.
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
"""Characters of a ``tracestate`` that must be passed on; a longer one may be dropped (W3C Trace Context, 3.3.1.5)."""


def tracing() -> Spans | None:
    """What makes spans here; None: nobody has set tracing up in this process."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    from .spans import spans_of  # noqa: PLC0415 - needs OpenTelemetry, which is an extra

    return spans_of(provider)


def span_at_hand() -> AbstractContextManager[None]:
    """A block, maybe in another thread, in which the span of now is at hand."""
    spans = tracing()
    return nullcontext() if spans is None else spans.within(spans.here())


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace that `headers` (names in lower case) name, if it is one; else nothing.

    Source: W3C Trace Context, 3.2 and 3.3.
    """
    parent, state = (str(headers.get(name) or "") for name in CARRIED)
    if TRACEPARENT.fullmatch(parent) is None:
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if 0 < len(state) <= LONGEST_STATE else {})


def trace_to_keep(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace that a run made by the request at hand belongs to: this process' span, else what the client named."""
    spans = tracing()
    return carried(headers) if spans is None else carried(spans.current()) or carried(headers)
