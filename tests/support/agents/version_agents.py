"""Agents with a code version from the environment variable TEST_VERSION."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from celery import Celery

from a2a_celery import A2A, Turn, step

FOLDER = Path(os.environ.get("TEST_FOLDER", "."))
VERSION = os.environ.get("TEST_VERSION", "1")
STEPS = 3

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


def is_released(place: str) -> bool:
    """Return True if an earlier run has reached the place. Otherwise, mark the place as reached and return False."""
    path = FOLDER / place
    if path.exists():
        return True
    path.touch()
    return False


@step
async def work(n: int) -> str:
    """Return the step's number and the version of the code that executes the step."""
    return f"{n} by {VERSION}"


@a2a.agent("versions", description="Stops after each step, once.", version=VERSION, max_attempts=100)
async def versions(turn: Turn) -> str:
    results = []
    for n in range(STEPS):
        results.append(await work(n))
        if not is_released(f"{turn.text}.after-{n}"):
            await asyncio.Event().wait()
    return ", ".join(results)


@a2a.agent("asks", description="Executes a step, and asks.", version=VERSION)
async def asks(turn: Turn) -> str:
    first_result = await work(0)
    answer = await turn.ask("Go on?")
    return f"{first_result}, {answer}, {await work(1)}"


@step
async def other_work(n: int) -> str:
    """Return the same text as `work` with a prefix, as a different step."""
    return f"other {n} by {VERSION}"


@a2a.agent("changes", description="Has another first step in each version.", version=VERSION)
async def changes(turn: Turn) -> str:
    first_result = await (work if VERSION == "1" else other_work)(0)
    return f"{first_result}, {await turn.ask('Go on?')}"
