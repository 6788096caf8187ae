"""The agents of the tests, in a process that says how many asyncio tasks it has when it gets a SIGUSR1."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from types import FrameType

from .agents import a2a, app

__all__ = ["a2a", "app"]


def say(number: int, frame: FrameType | None) -> None:
    """In the main thread, where the gateway's event loop runs."""
    names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    sys.stderr.write(f"asyncio tasks: {sum(names.values())} {dict(names)}\n")


signal.signal(signal.SIGUSR1, say)
