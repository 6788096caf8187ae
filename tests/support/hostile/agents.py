"""App of the test agents, with more agents and a handler of SIGUSR1 that prints the number of asyncio tasks."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from types import FrameType

from a2a_celery import Turn
from tests.support.agents.basic import a2a, app

__all__ = ["a2a", "app"]


@a2a.agent("approval", signals=("approval",))
async def approval(turn: Turn) -> str:
    """Wait for a signal and return its payload if the message is "wait". Otherwise, return "no approval"."""
    return str((await turn.wait_for("approval")).payload) if turn.text == "wait" else "no approval"


@a2a.agent("asks-number")
async def asks_number(turn: Turn) -> str:
    """Ask a question with a schema."""
    return str(await turn.ask("How many?", schema=int))


@a2a.agent("steered", on_message="steer")
async def steered(turn: Turn) -> str:
    """Work for half a second and count the messages that arrive."""
    message_count = 0
    for _ in range(5):
        await asyncio.sleep(0.1)
        message_count += len(await turn.poll_messages())
    return f"{message_count} messages"


def say(number: int, frame: FrameType | None) -> None:
    """Print the number of asyncio tasks. This handler of SIGUSR1 runs in the main thread, like the gateway's
    event loop."""
    names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    sys.stderr.write(f"asyncio tasks: {sum(names.values())} {dict(names)}\n")


signal.signal(signal.SIGUSR1, say)
