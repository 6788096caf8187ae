"""Waiting for conditions: no test sleeps for a while and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

EVERY = 0.02


def eventually(condition: Callable[[], T], *, within: float = 15.0, what: str = "", every: float = EVERY) -> T:
    """The first true value of `condition`; a failure that says what it last was if there is none in time.

    `every`: seconds between two looks; more for those that cost something.
    """
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        Event().wait(every)


async def eventually_async(condition: Callable[[], Awaitable[T]], *, within: float = 15.0, what: str = "") -> T:
    """`eventually`, for a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}; last: {value!r}")
        await asyncio.sleep(EVERY)
