"""Spans of framework agents. A model runs in the trace of the run, so that its spans descend from the run's span."""

from __future__ import annotations

from types import ModuleType

import pytest
from a2a.types import Part
from opentelemetry import trace

from tests.frameworks.test_activities import Scene
from workers import stand_in, with_adk, with_agent_framework, with_strands

SAMPLES: dict[str, ModuleType] = {
    "adk": with_adk,
    "agent-framework": with_agent_framework,
    "strands": with_strands,
}
"""Samples by the names of their agents. The tests of the other frameworks are in their own modules."""


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_model_sees_the_trace_of_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []

    async def think(*args: object) -> str | stand_in.Call:
        traces.append(trace.get_current_span().get_span_context().trace_id)
        return "thought"

    monkeypatch.setattr(SAMPLES[name], "think", think)
    run = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    with trace.use_span(run):
        await Scene().say(name, Part(text="hello"))

    assert traces == [1]
