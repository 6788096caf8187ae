"""The test agents in a process that prints the number of its asyncio tasks on SIGUSR1."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from types import FrameType

from .agents import a2a, app

__all__ = ["a2a", "app"]


def say(number: int, frame: FrameType | None) -> None:
    """Print the number of asyncio tasks. Signal handlers run in the main thread, as the gateway's event loop does."""
    names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    sys.stderr.write(f"asyncio tasks: {sum(names.values())} {dict(names)}\n")


signal.signal(signal.SIGUSR1, say)
