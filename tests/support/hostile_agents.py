"""The test agents in a process that prints the number of its asyncio tasks on SIGUSR1."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from types import FrameType

from a2a_celery import Turn

from .agents import a2a, app

__all__ = ["a2a", "app"]


@a2a.agent("approval")
async def approval(turn: Turn) -> str:
    """Wait for a signal if the message says "wait", and return its payload."""
    return str(await turn.wait_for("approval")) if turn.text == "wait" else "no approval"


@a2a.agent("asks-number")
async def asks_number(turn: Turn) -> str:
    """Ask a question with a schema."""
    return str(await turn.ask("How many?", schema=int))


@a2a.agent("steered", on_message="steer")
async def steered(turn: Turn) -> str:
    """Work for half a second, and read the messages that arrive."""
    read = 0
    for _ in range(5):
        await asyncio.sleep(0.1)
        read += len(await turn.poll_messages())
    return f"{read} messages"


def say(number: int, frame: FrameType | None) -> None:
    """Print the number of asyncio tasks. Signal handlers run in the main thread, as the gateway's event loop does."""
    names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    sys.stderr.write(f"asyncio tasks: {sum(names.values())} {dict(names)}\n")


signal.signal(signal.SIGUSR1, say)
