"""Functions that wait for a condition instead of a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

LIMIT = 90.0
"""Default number of seconds within which a condition must become true, even on a slow machine."""

EVERY = 0.02
"""Seconds between two checks of a condition."""


def eventually(condition: Callable[[], T], *, within: float = LIMIT, what: str = "", every: float = EVERY) -> T:
    """Call `condition` repeatedly until its value is true, and return the value.

    Args:
        condition: Function without arguments.
        within: Seconds after which the test fails.
        what: Description of the condition for the failure.
        every: Seconds between two calls. Use a longer interval for an expensive condition.
    """
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        Event().wait(every)


async def eventually_async(condition: Callable[[], Awaitable[T]], *, within: float = LIMIT, what: str = "") -> T:
    """Wait for an asynchronous `condition`, like `eventually`."""
    deadline = time.monotonic() + within
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        await asyncio.sleep(EVERY)
