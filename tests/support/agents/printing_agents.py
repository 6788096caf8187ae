"""Agents and a plain Celery task that print, pause or are ignored."""

from __future__ import annotations

import os
import sys

from celery import Celery
from celery.exceptions import Ignore

from a2a_celery import A2A, Turn

app = Celery("printing", broker=os.environ["CELERY_BROKER_URL"])
app.conf.task_default_queue = os.environ["TEST_QUEUE"]
app.conf.worker_redirect_stdouts = os.environ.get("TEST_REDIRECT", "yes") == "yes"
a2a = A2A(app)


@a2a.agent("printer")
async def printer(turn: Turn) -> str:
    """Print a line of several values, a line in two calls, and a line without an end."""
    print("one", turn.text, 3)
    print("two", end=" ")
    print("halves")
    print("to stderr", turn.text, file=sys.stderr)
    print("first\nsecond")
    print("unfinished", turn.text, end="")
    return "printed"


@a2a.agent("asks")
async def asks(turn: Turn) -> str:
    """Ask a question, and sleep."""
    answer = await turn.ask("How many?")
    await turn.sleep(0.1)
    return str(answer)


@app.task
def ignored() -> None:
    """Raise Celery's Ignore."""
    raise Ignore


@a2a.agent("publisher")
async def publisher(turn: Turn) -> str:
    """Publish the plain task."""
    ignored.delay()
    return "published"
