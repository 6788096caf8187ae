"""The agents that every side serves, on ours: what they do costs next to nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

from celery import Celery

from a2a_celery import A2A, Turn

app = Celery("benchmarks")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.result_backend = os.environ.get("TEST_RESULTS")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    """Says it back."""
    return turn.text


@a2a.agent("count")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Yields as many chunks as it is told."""
    for number in range(int(turn.text)):
        yield f"{number} "


@a2a.agent("pace")
async def pace(turn: Turn) -> AsyncIterator[str]:
    """Says when it says it: "<chunks> <seconds between>"."""
    chunks, pause = turn.text.split()
    for _ in range(int(chunks)):
        yield f"{time.monotonic():.6f} "
        await asyncio.sleep(float(pause))


@a2a.agent("silent")
async def silent(turn: Turn) -> str:
    """Says nothing for as many seconds as it is told."""
    await asyncio.sleep(float(turn.text))
    return "done"


@app.task(name="bare.echo")
def bare_echo(text: str) -> str:
    """Says it back, and has nothing to do with A2A: what Celery alone takes."""
    return text
