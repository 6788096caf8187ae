"""Spans of the SDK, which only processes with tracing create."""

from __future__ import annotations

import pytest
from a2a.utils import telemetry
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from a2a_celery.telemetry.sdk import only_where_traced


@telemetry.trace_function(span_name="a step", attributes={"of": "the SDK"})
async def step(fails: bool) -> str:
    """Run a step with a span, as the SDK's dispatchers do."""
    if fails:
        raise ValueError
    return "done"


@pytest.fixture(autouse=True)
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "trace", trace)
    only_where_traced()


async def test_without_tracing_no_span_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    monkeypatch.setattr(trace, "get_tracer", pytest.fail)

    assert await step(fails=False) == "done"
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        await step(fails=True)


async def test_with_tracing_the_sdk_s_spans_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    assert await step(fails=False) == "done"
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        await step(fails=True)

    fine, failure = exporter.get_finished_spans()
    assert (fine.name, fine.attributes, fine.status.is_ok) == ("a step", {"of": "the SDK"}, True)
    assert [event.name for event in failure.events] == ["exception"]


def test_the_switch_of_the_sdk_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    disabled_span = object()
    monkeypatch.setattr(telemetry, "trace", disabled_span)
    only_where_traced()
    assert telemetry.trace is disabled_span
