"""Event loops: selection of uvloop, and agents in a loop that runs in a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from a2a_celery.concurrency import new_loop, result_of, wait_for
from tests.support.processes.loops import run_in_thread
from tests.support.waiting import LIMIT

FASTEST = "uvloop" if find_spec("uvloop") else "asyncio"


@pytest.fixture(params=[True, False])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """Event loop that runs in a thread, as the loop of a worker does."""
    with run_in_thread(new_loop(uvloop=request.param)) as loop:
        yield loop


@pytest.mark.parametrize(("uvloop", "module"), [(True, FASTEST), (False, "asyncio")])
def test_the_loop_is_the_wanted_one_if_installed(uvloop: bool, module: str) -> None:
    loop = new_loop(uvloop=uvloop)
    loop.close()

    assert type(loop).__module__.partition(".")[0] == module


def test_an_agent_may_start_processes(loop: asyncio.AbstractEventLoop) -> None:
    async def run_command() -> tuple[bytes, int | None]:
        command = [sys.executable, "-c", "print('hello'); raise SystemExit(3)"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return out, process.returncode

    assert asyncio.run_coroutine_threadsafe(run_command(), loop).result(60) == (b"hello\n", 3)


def test_under_gevent_it_is_the_loop_of_asyncio() -> None:
    gevent_code = "from gevent import monkey; monkey.patch_all(); from a2a_celery.concurrency import new_loop"
    code = f"{gevent_code}; print(new_loop(uvloop=True))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)

    assert "uvloop" not in process.stdout


def test_a_cancelled_coroutine_is_no_exception_in_the_thread_that_waits(loop: asyncio.AbstractEventLoop) -> None:
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        wait_for(cancel_itself(), loop, lambda: False)
    with pytest.raises(asyncio.CancelledError):
        result_of(asyncio.run_coroutine_threadsafe(cancel_itself(), loop))


def test_a_thread_stops_waiting_when_it_must_stop(loop: asyncio.AbstractEventLoop) -> None:
    is_cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    with pytest.raises(asyncio.CancelledError):
        wait_for(hang(), loop, lambda: True)
    assert is_cancelled.wait(10)
