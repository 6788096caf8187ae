"""Agents that wait for a time or a signal, and a Celery task that sends a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from a2a_celery import Turn
from tests.support.agents.basic import a2a, app


@a2a.agent("sleeper", description="Sleeps for the number of seconds in the message.")
async def sleeper(turn: Turn) -> str:
    """Sleep, and return the delay of the wake-up in seconds."""
    seconds = float(turn.text)
    start_time = await turn.step("started", time.time)
    await turn.sleep(seconds)
    return f"{time.time() - start_time - seconds:.3f}"


@a2a.agent("blocking-sleeper", description="Sleeps in a thread for the number of seconds in the message.")
def blocking_sleeper(turn: Turn) -> str:
    """Behave like `sleeper`, as a plain function."""
    seconds = float(turn.text)
    start_time = turn.blocking.step("started", time.time)
    turn.blocking.sleep(seconds)
    return f"{time.time() - start_time - seconds:.3f}"


@a2a.agent("approval", description="Waits for an approval for a number of seconds.", signals=("approval",))
async def approval(turn: Turn) -> str:
    """Wait for two approvals in sequence."""
    try:
        first = await turn.wait_for("approval", timeout=float(turn.text))
        second = await turn.wait_for("approval", timeout=float(turn.text))
    except TimeoutError:
        return "too late"
    return f"approved by {first.payload['by']} and {second.payload['by']}"


@a2a.agent("serial-sleeper", description="Sleeps, one task of a context at a time.", one_run_per_context=True)
async def serial_sleeper(turn: Turn) -> str:
    """Sleep for the number of seconds in the message."""
    await turn.sleep(float(turn.text))
    return "awake"


@a2a.agent("killed", description="Kills its worker in a short sleep, once.", max_attempts=2)
async def killed(turn: Turn) -> str:
    """Sleep for three seconds. In the first attempt, kill the worker process after one second."""
    if turn.attempt == 1:
        asyncio.get_running_loop().call_later(1, os.kill, os.getpid(), signal.SIGKILL)
    await turn.sleep(3)
    return f"attempt {turn.attempt}"


@a2a.agent("idle-sleeper", description="Sleeps beyond its limits.", idle_limit=2, time_limit=8)
async def idle_sleeper(turn: Turn) -> str:
    """Sleep twice. Each sleep exceeds the idle limit, and both together exceed the time limit."""
    await turn.sleep(6)
    await turn.sleep(6)
    return "awake"


@app.task(name="tests.approve")
def approve(task_id: str, payload: Any) -> bool:
    """Send an approval from a Celery task. Return True if a run waited for the approval."""
    return a2a.signal(task_id, "approval", payload)
