"""`LeanEvent`, which wakes all waiters and removes cancelled waiters."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.concurrency import LeanEvent


async def test_all_waiters_wake_also_if_the_event_is_reset_at_once() -> None:
    event = LeanEvent()
    waiting = [asyncio.ensure_future(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)

    event.set()
    event.set()
    event.clear()

    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert not event.is_set()


async def test_a_set_event_does_not_wait() -> None:
    event = LeanEvent()
    event.set()

    assert event.is_set()
    async with asyncio.timeout(30):
        await event.wait()


async def test_a_cancelled_waiter_is_removed() -> None:
    event = LeanEvent()
    first, other = asyncio.ensure_future(event.wait()), asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not other.done()

    event.set()
    async with asyncio.timeout(30):
        await other


async def test_a_future_needs_no_task() -> None:
    event = LeanEvent()
    future = event.future()
    assert not future.done()

    event.set()
    assert future.done()
    assert event.future().done()
