"""Threads that wait for a run. A thread receives the run's result, and continues its checks while the event loop is
blocked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event

import pytest

from a2a_celery.execution.process import forced_stop
from a2a_celery.execution.process.forced_stop import oversee
from tests.support.processes.loops import run_in_thread


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with run_in_thread(asyncio.new_event_loop()) as loop:
        yield loop


def never() -> None:
    raise AssertionError("the loop is not blocked")


def test_a_timeout_error_of_the_run_is_its_result(loop: asyncio.AbstractEventLoop) -> None:
    under_way: Future[str] = Future()
    under_way.set_exception(TimeoutError("the run's own"))

    with pytest.raises(TimeoutError, match="the run's own"):
        oversee(under_way, loop, never)


def test_a_run_may_take_longer_than_a_check(loop: asyncio.AbstractEventLoop) -> None:
    under_way: Future[str] = Future()
    has_checked = Event()

    def look() -> None:
        has_checked.set()
        loop.call_later(0.2, under_way.set_result, "done")

    loop.call_soon_threadsafe(look)
    assert oversee(under_way, loop, lambda: None, interval=0.05) == "done"
    assert has_checked.is_set()


def test_a_callback_is_repeated_while_the_loop_is_blocked(loop: asyncio.AbstractEventLoop) -> None:
    under_way: Future[str] = Future()
    may_continue, calls = Event(), []

    def block() -> None:
        may_continue.wait(30)
        under_way.set_result("done")

    def count_check() -> None:
        calls.append(1)
        if len(calls) == 3:
            may_continue.set()

    loop.call_soon_threadsafe(block)
    assert oversee(under_way, loop, count_check, interval=0.05) == "done"
    assert len(calls) >= 3


def test_machines_of_one_name_have_other_runner_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = forced_stop.runner_prefix(7)
    forced_stop.machine_id.cache_clear()
    assert forced_stop.runner_prefix(7) == prefix
    forced_stop.machine_id.cache_clear()
    monkeypatch.setattr(os, "readlink", lambda path: f"{path} of another container")

    elsewhere = forced_stop.runner_prefix(7)

    forced_stop.machine_id.cache_clear()
    assert elsewhere != prefix
    assert elsewhere.split(".")[0] == prefix.split(".")[0], "the name of the machine is the same"
