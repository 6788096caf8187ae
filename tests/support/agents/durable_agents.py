"""Agents with durable steps. Each agent hangs at the places where a test kills the worker. The next attempt continues
after the last completed step."""

from __future__ import annotations

import asyncio
import os
import threading
from hashlib import sha256
from pathlib import Path

from celery import Celery

from a2a_celery import A2A, Turn, current_step_key, step

STEPS = 3
ATTEMPTS = 20
LARGE = 2 * 1024 * 1024

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


def folder() -> Path:
    """Return the folder in which the agents record their progress, also for the process of the test."""
    return Path(os.environ["TEST_FOLDER"])


def places(task: str) -> list[str]:
    """Return the names of the places at which a task hangs, in order."""
    between = [f"{task}.after-{n}" for n in range(STEPS)]
    return [between[0], f"{task}.in-1", *between[1:]]


def is_passed(place: str) -> bool:
    """Return True if an earlier attempt has reached the place. Otherwise, mark the place as reached and return
    False."""
    path = folder() / place
    if path.exists():
        return True
    path.touch()
    return False


def write_line(task: str, name: str, text: str) -> None:
    """Append `text` as a line to the file `name` of a task."""
    with (folder() / f"{task}.{name}").open("a") as file:
        file.write(f"{text}\n")


def lines(task: str, name: str) -> list[str]:
    """Return the lines of the file `name` of a task, or [] if the file is missing."""
    path = folder() / f"{task}.{name}"
    return path.read_text().splitlines() if path.exists() else []


def take_effect(task: str, n: int) -> None:
    """Simulate a request to a service that deduplicates requests by an idempotency key."""
    write_line(task, "executed", str(n))
    key = current_step_key()
    if key not in lines(task, "keys"):
        write_line(task, "keys", key)
        write_line(task, "effects", str(n))


@step
async def work(task: str, n: int) -> str:
    """Call the simulated service. In the first attempt of step 1, hang after the call."""
    take_effect(task, n)
    if n == 1 and not is_passed(f"{task}.in-1"):
        await asyncio.Event().wait()
    return f"result {n}"


@a2a.agent("steps", description="Executes steps.", max_attempts=ATTEMPTS)
async def steps(turn: Turn) -> str:
    results = []
    for n in range(STEPS):
        results.append(await work(turn.text, n))
        if not is_passed(f"{turn.text}.after-{n}"):
            await asyncio.Event().wait()
    return ", ".join(results)


@a2a.agent("blocking-steps", description="Executes steps in a thread.", max_attempts=ATTEMPTS)
def blocking_steps(turn: Turn) -> str:
    task = turn.text

    def blocking_work(n: int) -> str:
        take_effect(task, n)
        if n == 1 and not is_passed(f"{task}.in-1"):
            threading.Event().wait()
        return f"result {n}"

    results = []
    for n in range(STEPS):
        results.append(turn.blocking.step("work", blocking_work, n))
        if not is_passed(f"{task}.after-{n}"):
            threading.Event().wait()
    return ", ".join(results)


@a2a.agent("thread-step", description="Executes a plain step in a thread.", max_attempts=2)
async def thread_step(turn: Turn) -> str:
    task = turn.text

    def work_in_thread() -> str:
        take_effect(task, 0)
        while not (folder() / f"{task}.may-end").exists():
            threading.Event().wait(0.05)
        return "result 0"

    return await turn.step("work", work_in_thread)


@a2a.agent("parallel-steps", description="Executes steps at once.", max_attempts=ATTEMPTS)
async def parallel_steps(turn: Turn) -> str:
    task = turn.text

    async def parallel_work(n: int) -> str:
        take_effect(task, n)
        return f"result {n}"

    results = await asyncio.gather(*(turn.step("work", parallel_work, n) for n in range(STEPS)))
    if not is_passed(f"{task}.after-0"):
        await asyncio.Event().wait()
    return ", ".join(results)


@a2a.agent("waits", description="Waits after a step; its second attempt continues.", max_attempts=2)
async def waits(turn: Turn) -> str:
    result = await work(turn.text, 0)
    if not is_passed(f"{turn.text}.after-0"):
        await asyncio.Event().wait()
    return result


@a2a.agent("once", description="Runs at most once.")
async def once(turn: Turn) -> str:
    result = await work(turn.text, 0)
    if not is_passed(f"{turn.text}.after-0"):
        await asyncio.Event().wait()
    return f"{result}, {await work(turn.text, 2)}"


@step
async def produce(task: str, n: int) -> bytes:
    """Return a result above the size limit of the store."""
    take_effect(task, n)
    return bytes([n]) * LARGE


async def produce_and_stop(task: str, stops: int) -> str:
    """Execute `STEPS` steps with large results and return a digest. Hang once after each of the first `stops` steps."""
    digest = sha256()
    for n in range(STEPS):
        digest.update(await produce(task, n))
        if n < stops and not is_passed(f"{task}.after-{n}"):
            await asyncio.Event().wait()
    return digest.hexdigest()


@a2a.agent("large-results", description="Has large results, and stops twice.", max_attempts=ATTEMPTS)
async def large_results(turn: Turn) -> str:
    return await produce_and_stop(turn.text, 2)


@a2a.agent("large-once", description="Has large results, and runs at most once.")
async def large_once(turn: Turn) -> str:
    return await produce_and_stop(turn.text, 1)
