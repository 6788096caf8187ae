"""The app of `plain_tasks` as it was before anything of A2A was in it: a worker that knows nothing of runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from celery import Celery

app = Celery(broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["TEST_RESULTS"])
app.conf.task_default_queue = os.environ["TEST_QUEUE"]
app.conf.task_track_started = True


@app.task(name="tests.support.plain_tasks.shout")
def shout(text: str) -> str:
    """As it has always been."""
    return f"{text.upper()} as ever"


@app.task(name="tests.support.plain_tasks.raises")
def raises(what: str) -> str:
    """Raises in its own way."""
    raise ValueError("a secret")


@app.task(name="tests.support.plain_tasks.waits")
def waits(path: str) -> str:
    """Begins, and waits for a file."""
    Path(path).touch()
    while not Path(f"{path}.go").exists():
        threading.Event().wait(0.05)
    return "went on"
