"""Plain Celery tasks that are exposed as agents, one for each feature of Celery tasks."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import signal
import time
from datetime import date
from typing import Any

from celery import Task, chain, chord, group
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from google.protobuf.json_format import MessageToDict

from a2a_celery import AuthRequired, Failed, InputRequired, Rejected, current_turn
from tests.support.agents.basic import a2a, app

app.conf.result_backend = os.environ.get("TEST_RESULTS")
app.conf.task_ignore_result = "TEST_IGNORE_RESULTS" in os.environ
app.conf.task_always_eager = "TEST_ALWAYS_EAGER" in os.environ
app.conf.task_annotations = {"*": {"acks_late": True}} if "TEST_ACKS_LATE" in os.environ else None


@app.task
def resize(url: str, width: int, height: int = 0) -> dict[str, Any]:
    """Resize an image."""
    return {"url": url, "width": width, "height": height, "whole": isinstance(width, int)}


@app.task
def shout(text: str) -> str:
    return text.upper()


@app.task
def gives(what: str) -> Any:
    """Return a value of the named type."""
    return {"none": None, "bytes": b"raw", "tuple": (1, 2), "date": date(2030, 1, 2), "set": {1}, "nan": float("nan")}[
        what
    ]


@app.task(bind=True)
def progress(self: Task, steps: int = 3) -> str:
    for step in range(1, steps + 1):
        self.update_state(state="PROGRESS", meta={"step": step, "of": steps})
    return "done"


class Flaky(Exception):
    """Exception for which Celery retries a task."""


@app.task(bind=True, autoretry_for=(Exception,), max_retries=2, default_retry_delay=0)
def flaky(self: Task, succeed_at: int = 2) -> str:
    if self.request.retries + 1 < succeed_at:
        raise Flaky("a secret")
    return f"attempt {self.request.retries + 1}"


@app.task(bind=True, autoretry_for=(Exception,), max_retries=2)
def asks(self: Task, city: str = "", size: int = 0) -> str:
    """Request input, although Celery retries all exceptions of this task."""
    if not city:
        raise InputRequired("Which city?")
    if not size:
        raise InputRequired()
    return f"{city} {size}"


@app.task
def confirms(city: str = "") -> str:
    """Request an argument, and then ask two questions whose answers are not arguments."""
    if not city:
        raise InputRequired("Which city?")
    turn = current_turn()
    assert turn is not None
    confirmation = turn.blocking.ask("Are you sure?")
    details = turn.blocking.ask("Which details?")
    return f"{city}, {confirmation}, {json.dumps(MessageToDict(details.message.parts[0].data), sort_keys=True)}"


@app.task(bind=True, max_retries=3)
def later(self: Task, countdown: float = 1) -> str:
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    return "later"


@app.task(bind=True)
def raises(self: Task, what: str) -> str:
    match what:
        case "Rejected":
            raise Rejected("Not that.")
        case "Failed":
            raise Failed("No such city.")
        case "AuthRequired":
            raise AuthRequired("Who are you?")
        case "Ignore":
            raise Ignore
        case "Reject":
            raise Reject("a secret", requeue=False)
        case "SystemExit" | "MemoryError":
            raise getattr(builtins, what)("a secret")
        case "CancelledError":
            raise asyncio.CancelledError
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a secret")


@app.task(bind=True, acks_late=True)
def requeues(self: Task, folder: str) -> str:
    """Requeue the Celery message once."""
    mark = os.path.join(folder, str(self.request.id))
    if not os.path.exists(mark):
        open(mark, "w").close()
        raise Reject("again", requeue=True)
    return "second time"


@app.task(acks_late=True, reject_on_worker_lost=True)
def dies(folder: str, times: int) -> str:
    """Kill the process in the first `times` executions."""
    deaths = len(os.listdir(folder))
    if deaths < times:
        open(os.path.join(folder, str(deaths)), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"after {deaths} deaths"


@app.task(soft_time_limit=1)
def soft(seconds: float = 30, tidy: bool = False) -> str:
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        if tidy:
            return "tidied up"
        raise
    return "in time"


@app.task(time_limit=1)
def hard(seconds: float = 30) -> str:
    time.sleep(seconds)
    return "in time"


@app.task
def sleeps(seconds: float = 30) -> str:
    time.sleep(seconds)
    return "slept"


@app.task
def waits(path: str) -> str:
    """Return immediately. The older release of this task waits."""
    return "at once"


@app.task
def counts(name: str) -> str:
    """Return immediately. The older release of this task counts its executions, and waits."""
    return "at once"


@app.task(ignore_result=True)
def says() -> str:
    turn = current_turn()
    assert turn is not None
    turn.blocking.say("halfway")
    turn.blocking.artifact("extra", name="log")
    return turn.task_id


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def breaks(_: Any = None) -> None:
    raise ValueError("a secret")


@app.task(bind=True)
def canvas(self: Task, how: str) -> Any:
    """Start a canvas, return one, or replace the task with one, depending on `how`."""
    match how:
        case "returned chain":
            return chain(add.s(1, 2), add.s(3)).apply_async()
        case "signature":
            return chain(add.s(1, 2), add.s(4))
        case "replaced by chain":
            return self.replace(chain(add.s(1, 2), add.s(5)))
        case "replaced by group":
            return self.replace(group(add.s(1, 2), add.s(3, 4)))
        case "returned group":
            return group(add.s(1, 2), add.s(3, 4)).apply_async()
        case "chord":
            return chord([add.s(1, 2), add.s(3, 4)], total.s()).apply_async()
        case "breaks":
            return chain(add.s(1, 2), breaks.s(), add.s(3)).apply_async()
        case "breaks when replaced":
            return self.replace(chain(breaks.s(), add.s(3)))
        case "sleeps":
            return chain(sleeps.si(5), add.si(3, 4)).apply_async()
    raise AssertionError(how)


@app.task(name="tests.ghost")
def ghost() -> str:
    """Return a text. Only processes with TEST_GHOST have this task."""
    return "boo"


if "TEST_GHOST" in os.environ:
    a2a.expose(ghost, name="ghost-task")
else:
    del app.tasks["tests.ghost"]

for task in (
    resize, shout, gives, progress, flaky, asks, confirms, later, raises, requeues, dies, soft, hard, sleeps, waits,
    counts, says, canvas,
):  # fmt: skip
    a2a.expose(task)

app.conf.worker_send_task_events = "TEST_EVENTS" in os.environ
