"""Agents with two durable steps and a different kind of wait between the steps. Each agent hangs at places where a test
kills the worker."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

from a2a.helpers import get_message_text

from a2a_celery import Turn
from tests.support.agents.durable_agents import ATTEMPTS, a2a, app, folder, is_passed, take_effect, work, write_line  # noqa: F401

PLACES = ("before", "after", "end")
"""Places at which an agent hangs: before its wait, after its wait and after the second step."""

SLEEP = 8.0
"""Duration of a sleep in seconds, long enough that the run is suspended."""


async def stop_once(task: str, place: str) -> None:
    """Hang in the first attempt that reaches the place, until the worker is killed."""
    if not is_passed(f"{task}.{place}"):
        await asyncio.Event().wait()


async def wait_between_steps(task: str, wait: Callable[[], Awaitable[str]]) -> str:
    """Execute a step, wait, and execute a second step. Hang once at each place."""
    await work(task, 0)
    await stop_once(task, "before")
    write_line(task, "waits", "now")
    signal_name = await wait()
    write_line(task, "received", signal_name)
    await stop_once(task, "after")
    await work(task, 2)
    await stop_once(task, "end")
    return signal_name


@a2a.agent("sleeps", description="Sleeps.", max_attempts=ATTEMPTS)
async def sleeps(turn: Turn) -> str:
    async def wait() -> str:
        await turn.sleep(SLEEP)
        return "awake"

    return await wait_between_steps("sleeps", wait)


@a2a.agent("waits-for-signal", description="Waits for a signal.", signals=("go",), max_attempts=ATTEMPTS)
async def waits_for_signal(turn: Turn) -> str:
    async def wait() -> str:
        return str((await turn.wait_for("go")).payload["by"])

    return await wait_between_steps("waits-for-signal", wait)


@a2a.agent("waits-in-thread", description="Waits for a signal in a thread.", signals=("go",), max_attempts=ATTEMPTS)
def waits_in_thread(turn: Turn) -> str:
    task = "waits-in-thread"

    def stop(place: str) -> None:
        if not is_passed(f"{task}.{place}"):
            threading.Event().wait()

    turn.blocking.step("first", take_effect, task, 0)
    stop("before")
    write_line(task, "waits", "now")
    signal_name = str(turn.blocking.wait_for("go").payload["by"])
    write_line(task, "received", signal_name)
    stop("after")
    turn.blocking.step("second", take_effect, task, 2)
    stop("end")
    return signal_name


@a2a.agent("asks-number", description="Asks for a number.", max_attempts=ATTEMPTS)
async def asks_number(turn: Turn) -> str:
    async def wait() -> str:
        return str(await turn.ask("How many?", schema=int) + 1)

    return await wait_between_steps("asks-number", wait)


@a2a.agent("listens-once", description="Reads a message.", max_attempts=ATTEMPTS, on_message="steer")
async def listens_once(turn: Turn) -> str:
    async def wait() -> str:
        async for message in turn.incoming():
            return get_message_text(message)
        raise AssertionError("the iteration has no end")

    return await wait_between_steps("listens-once", wait)


@a2a.agent("calls-child", description="Calls an agent.", max_attempts=ATTEMPTS)
async def calls_child(turn: Turn) -> str:
    async def wait() -> str:
        return (await turn.call("child", "begin")).text

    return await wait_between_steps("calls-child", wait)


@a2a.agent("calls-remote", description="Calls an agent over HTTP.", max_attempts=ATTEMPTS)
async def calls_remote(turn: Turn) -> str:
    async def wait() -> str:
        return (await turn.call(f"{os.environ['TEST_GATEWAY']}/agents/remote-child", "begin")).text

    return await wait_between_steps("calls-remote", wait)


@a2a.agent(
    "interrupted", description="Works until a message interrupts it.", max_attempts=ATTEMPTS, on_message="interrupt"
)
async def interrupted(turn: Turn) -> str:
    """Execute the first step in the first turn, and the second step in the turn of the interrupting message."""
    task = "interrupted"
    if turn.number == 1:
        await work(task, 0)
        await stop_once(task, "before")
        write_line(task, "waits", "now")
        await asyncio.Event().wait()
    write_line(task, "received", turn.text)
    await stop_once(task, "after")
    await work(task, 2)
    await stop_once(task, "end")
    return turn.text


async def work_as_child(name: str) -> str:
    """Execute a step, wait until the test creates a file, and execute a second step."""
    await work(name, 0)
    write_line(name, "waits", "now")
    while not (folder() / "child.go-on").exists():  # noqa: ASYNC110 - the test creates the file
        await asyncio.sleep(0.05)
    return await work(name, 2)


@a2a.agent("child", description="Waits for a file.", max_attempts=ATTEMPTS)
async def child(turn: Turn) -> str:
    return await work_as_child("child")


@a2a.agent("remote-child", description="Waits for a file.", max_attempts=ATTEMPTS, idempotency_window=600)
async def remote_child(turn: Turn) -> str:
    return await work_as_child("remote-child")
