"""App of a different project, built on this project's image. Its agents create spans."""

import asyncio

from celery import Celery
from opentelemetry import trace

from a2a_celery import A2A, Turn

app = Celery("acme")
a2a = A2A(app)
tracer = trace.get_tracer("acme")


@a2a.agent("thinker")
async def thinker(turn: Turn) -> str:
    """Think in a separate span, and return the text of the message."""
    with tracer.start_as_current_span("thinks"):
        await turn.say("thinking")
        await asyncio.sleep(0.05)  # so that this is a separate write
    return turn.text


@a2a.agent("sleeper")
async def sleeper(turn: Turn) -> str:
    """Sleep until it is canceled."""
    await asyncio.sleep(600)
    return "awake"
