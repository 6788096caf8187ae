"""Hanging probes. A gateway reports them in time, and does not start further probes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event

import pytest

from a2a_celery.gateway.health import SingleCall


@pytest.fixture
def release() -> Iterator[Event]:
    """Event that lets the hanging call return. It is set after the test, so that no thread remains."""
    release = Event()
    yield release
    release.set()


async def test_a_call_that_comes_back_gives_its_result_and_its_error() -> None:
    assert await SingleCall(lambda: 7).result(5) == 7
    with pytest.raises(ZeroDivisionError):
        await SingleCall(lambda: 1 / 0).result(5)


async def test_a_call_that_hangs_is_given_up_and_not_made_again(release: Event) -> None:
    calls = []
    call = SingleCall(lambda: (calls.append(1), release.wait(30)))

    for _ in range(3):
        with pytest.raises(TimeoutError):
            await call.result(0.05)

    release.set()
    assert call._made is not None
    await asyncio.wait({call._made})
    assert len(calls) == 1


async def test_when_it_comes_back_it_is_made_anew(release: Event) -> None:
    calls = []
    call = SingleCall(lambda: (calls.append(1), release.wait(30))[1])
    with pytest.raises(TimeoutError):
        await call.result(0.05)

    release.set()

    assert call._made is not None
    await asyncio.wait({call._made})
    assert await call.result(5) is True
    assert len(calls) == 2
