"""A flag wakes all that wait for it, and forgets those that don't wait any more."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.flag import Flag


async def test_all_that_wait_are_woken_also_when_it_is_lowered_at_once() -> None:
    flag = Flag()
    waiting = [asyncio.ensure_future(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)

    flag.set()
    flag.set()
    flag.clear()

    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert not flag.is_set()


async def test_one_that_is_raised_keeps_nobody_waiting() -> None:
    flag = Flag()
    flag.set()

    assert flag.is_set()
    async with asyncio.timeout(30):
        await flag.wait()


async def test_a_waiter_that_is_cancelled_is_forgotten() -> None:
    flag = Flag()
    gone, other = asyncio.ensure_future(flag.wait()), asyncio.ensure_future(flag.wait())
    await asyncio.sleep(0)

    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not other.done()

    flag.set()
    async with asyncio.timeout(30):
        await other


async def test_it_can_be_waited_for_beside_other_things_without_a_task() -> None:
    flag = Flag()
    raised = flag.raised()
    assert not raised.done()

    flag.set()
    assert raised.done()
    assert flag.raised().done()
