"""Agents with ten durable steps. Each execution of a step writes a line, and each step has an effect with an
idempotency key."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

from celery import Celery

from a2a_celery import A2A, Turn, current_step_key, step

FOLDER = Path(os.environ.get("TEST_FOLDER", "."))
WORKER = os.environ.get("TEST_WORKER", "")
"""Name of this process's worker."""

STEPS = 10
LONGEST_STEP = 0.4
"""Maximum duration of a step in seconds."""

ATTEMPTS = 1000

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


class Line(NamedTuple):
    """Execution of a step in a worker, as a line in the file of a task."""

    step: int
    worker: str


def read_lines(folder: Path, task: str) -> list[Line]:
    """Return the executions of a task's steps, in order."""
    fields = (line.split() for line in (folder / f"{task}.lines").read_text().splitlines())
    return [Line(int(number), worker) for number, worker in fields]


def read_effects(folder: Path, task: str) -> list[int]:
    """Return the numbers of the steps that had an effect, in order."""
    return [int(line.split()[0]) for line in (folder / f"{task}.effects").read_text().splitlines()]


def write(task: str, n: int) -> None:
    """Write a line for an execution of a step. Write the effect unless the file contains the idempotency key."""
    with (FOLDER / f"{task}.lines").open("a") as lines:
        lines.write(f"{n} {WORKER}\n")
    with (FOLDER / f"{task}.effects").open("a+") as effects:
        fcntl.flock(effects, fcntl.LOCK_EX)
        effects.seek(0)
        if current_step_key() not in effects.read().split():
            effects.write(f"{n} {current_step_key()}\n")


@step
async def work(task: str, n: int) -> int:
    """Pause, write the line and the effect, and pause again."""
    await asyncio.sleep(random.uniform(0, LONGEST_STEP / 2))
    write(task, n)
    await asyncio.sleep(random.uniform(0, LONGEST_STEP / 2))
    return n


def blocking_work(task: str, n: int) -> int:
    """Do the same as `work`, as a plain function."""
    time.sleep(random.uniform(0, LONGEST_STEP / 2))
    write(task, n)
    time.sleep(random.uniform(0, LONGEST_STEP / 2))
    return n


@a2a.agent("ten-steps", description="Executes ten steps.", max_attempts=ATTEMPTS)
async def ten_steps(turn: Turn) -> str:
    return " ".join([str(await work(turn.text, n)) for n in range(STEPS)])


@a2a.agent("ten-blocking-steps", description="Executes ten steps in a thread.", max_attempts=ATTEMPTS)
def ten_blocking_steps(turn: Turn) -> str:
    return " ".join([str(turn.blocking.step("work", blocking_work, turn.text, n)) for n in range(STEPS)])
