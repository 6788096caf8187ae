"""Functions that wait for a condition instead of a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

LIMIT = 120.0
"""Default number of seconds within which a condition must become true, even on a slow machine."""

EVERY = 0.02
"""Seconds between two checks of a condition. The first intervals are shorter."""

FIRST = 0.001
"""Seconds between the first two checks. Each following interval is twice as long, up to `EVERY`."""


def eventually(condition: Callable[[], T], *, within: float = LIMIT, what: str = "", every: float = EVERY) -> T:
    """Call `condition` repeatedly until its value is true, and return the value.

    Args:
        condition: Function without arguments.
        within: Seconds after which the test fails.
        what: Description of the condition for the failure.
        every: Maximum number of seconds between two calls. Use a longer interval for an expensive condition.
    """
    deadline = time.monotonic() + within
    interval = FIRST
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        Event().wait(min(interval, every))
        interval *= 2


async def eventually_async(condition: Callable[[], Awaitable[T]], *, within: float = LIMIT, what: str = "") -> T:
    """Wait for an asynchronous `condition`, like `eventually`."""
    deadline = time.monotonic() + within
    interval = FIRST
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        await asyncio.sleep(min(interval, EVERY))
        interval *= 2
