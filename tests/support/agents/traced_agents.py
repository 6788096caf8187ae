"""Agents that create spans, in a module that sets up tracing as a user's module does."""

from __future__ import annotations

import asyncio
import os

from celery import Celery
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from a2a_celery import A2A, Turn

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
if os.environ.get("TEST_CELERY_INSTRUMENTED"):
    CeleryInstrumentor().instrument()

app = Celery("traced")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)
tracer = trace.get_tracer("tests")

THOUGHT = "thinks"


@a2a.agent("thinker")
async def thinker(turn: Turn) -> str:
    """Return the text of the message, and create a span."""
    with tracer.start_as_current_span(THOUGHT):
        await turn.say("thinking")
        await asyncio.sleep(0.05)  # so that the status and the result are separate writes
    return turn.text


@a2a.agent("sync-thinker")
def sync_thinker(turn: Turn) -> str:
    """Create a span in a thread, and return the caller's header ``baggage``."""
    with tracer.start_as_current_span(THOUGHT):
        return turn.caller.headers.get("baggage", "no baggage")


@app.task(name="double", shared=False)
def double(number: int) -> int:
    """Double a number, and create a span."""
    with tracer.start_as_current_span(THOUGHT):
        return 2 * number


a2a.expose(double)


@a2a.agent("breaks")
async def breaks(turn: Turn) -> str:
    """Raise an exception."""
    raise RuntimeError(f"broken by {turn.text}")


@a2a.agent("slow-thinker")
async def slow_thinker(turn: Turn) -> str:
    """Work for a second. A parent that waits for the result is suspended before that."""
    with tracer.start_as_current_span(THOUGHT):
        await asyncio.sleep(1)
    return turn.text


@a2a.agent("delegates")
async def delegates(turn: Turn) -> str:
    """Call an agent without HTTP and return the agent's result."""
    return (await turn.call("slow-thinker", turn.text)).text


@a2a.agent("delegates-by-url")
async def delegates_by_url(turn: Turn) -> str:
    """Call the agent whose URL is in the message."""
    return (await turn.call(turn.text, "hello")).text
