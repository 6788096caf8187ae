"""The agents that every side serves, on ours: what they do costs next to nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from celery import Celery

from a2a_celery import A2A, Turn

app = Celery("benchmarks")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
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
