"""App of `plain_tasks` before A2A was added. The workers of this app do not import a2a_celery."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from celery import Celery, Task

FOLDER = Path(os.environ.get("TEST_FOLDER", "."))

app = Celery(broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["TEST_RESULTS"])
app.conf.task_default_queue = os.environ["TEST_QUEUE"]
app.conf.task_track_started = "TEST_UNTRACKED" not in os.environ
app.conf.worker_prefetch_multiplier = int(os.environ.get("TEST_PREFETCH", "4"))


def wait_for(path: Path) -> None:
    """Wait until the test has created the file."""
    while not path.exists():
        threading.Event().wait(0.05)


@app.task(name="tests.support.agents.plain_tasks.shout")
def shout(text: str) -> str:
    """Return the text in upper case."""
    return f"{text.upper()} as ever"


@app.task(name="tests.support.agents.plain_tasks.raises")
def raises(what: str) -> str:
    """Raise an exception of the app."""
    raise ValueError("a secret")


@app.task(name="tests.support.agents.plain_tasks.waits")
def waits(path: str) -> str:
    """Create a file at the start, and wait until the test has created a second file."""
    Path(path).touch()
    wait_for(Path(f"{path}.go"))
    return "went on"


@app.task(name="tests.support.agents.plain_tasks.counts")
def counts(name: str) -> str:
    """Create a file for each execution, and wait until the test has created the file "<name>.go"."""
    execution = len(list(FOLDER.glob(f"{name}.execution-*")))
    (FOLDER / f"{name}.execution-{execution}").touch()
    wait_for(FOLDER / f"{name}.go")
    return name


@app.task(name="tests.support.agents.plain_tasks.progress", bind=True)
def progress(self: Task, steps: int = 3) -> str:
    """Report a step each time the test creates the file of the step. Return when the file "end" exists."""
    for step in range(1, steps + 1):
        wait_for(FOLDER / f"step {step}")
        self.update_state(state="PROGRESS", meta={"step": step, "of": steps})
    wait_for(FOLDER / "end")
    return "done"


@app.task(name="tests.support.agents.plain_tasks.flaky", bind=True, max_retries=2, default_retry_delay=0)
def flaky(self: Task, succeed_at: int = 2) -> str:
    """Wait for a file in each attempt, and fail until attempt `succeed_at`."""
    wait_for(FOLDER / f"attempt {self.request.retries + 1}")
    if self.request.retries + 1 < succeed_at:
        raise self.retry(exc=ValueError("a secret"), countdown=1)
    return f"attempt {self.request.retries + 1}"
