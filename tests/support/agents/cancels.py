"""Agents with different reactions to a cancellation, added to the app of `agents`.

An agent that ignores the cancellation appends to a file about a hundred times a second. The message names the file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_celery import Turn
from tests.support.agents.basic import a2a, app, card
from tests.support.agents.endings import app as _with_endings

assert _with_endings is app
LIFE = 60.0
"""Seconds after which an agent that ignores the cancellation returns. No test waits this long."""


def marks(path: str) -> Iterator[None]:
    """Append to a file every 10 ms and yield."""
    until = time.monotonic() + LIFE
    while time.monotonic() < until:
        with Path(path).open("a") as file:
            file.write(".")
        time.sleep(0.01)
        yield


@a2a.agent("deaf-function")
def deaf_function(turn: Turn) -> str:
    """Ignore the cancellation in a plain function."""
    for _ in marks(turn.text):
        pass
    return "done"


@a2a.agent("blocks-the-loop")
async def blocks_the_loop(turn: Turn) -> str:
    """Block the event loop."""
    for _ in marks(turn.text):
        pass
    return "done"


async def swallow(path: str) -> None:
    """Suppress every `CancelledError`."""
    for _ in marks(path):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue


@a2a.agent("swallows")
async def swallows(turn: Turn) -> str:
    await swallow(turn.text)
    return "done"


class HangsInCancel(AgentExecutor):
    """Executor whose `cancel` hangs, but whose `execute` can be cancelled."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await asyncio.sleep(LIFE)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await asyncio.sleep(LIFE)


a2a.add_agent(card("hangs-in-cancel"), HangsInCancel)


@a2a.agent("limited-function", time_limit=2)
def limited_function(turn: Turn) -> str:
    return deaf_function(turn)


@a2a.agent("limited-swallows", time_limit=2)
async def limited_swallows(turn: Turn) -> str:
    return await swallows(turn)


@a2a.agent("limited-blocks", time_limit=2)
async def limited_blocks(turn: Turn) -> str:
    return await blocks_the_loop(turn)


@a2a.agent("idle-blocks", idle_limit=2)
async def idle_blocks(turn: Turn) -> str:
    return await blocks_the_loop(turn)


@a2a.agent("lost-once", max_attempts=2)
def lost_once(turn: Turn) -> str:
    """Ignore the cancellation in the first attempt."""
    return deaf_function(turn) if turn.attempt == 1 else "second"


def begun_file(turn: Turn) -> Path:
    """Return the path of the file that shows that the agent's function is being run."""
    return Path(turn.text + ".begun")


@a2a.agent("looks")
def looks(turn: Turn) -> str:
    """Poll for the cancellation in a plain function, and clean up for half a second."""
    begun_file(turn).touch()
    while not turn.cancelled:
        time.sleep(0.01)
    time.sleep(0.5)
    Path(turn.text).write_text("tidied up")
    return "stopped"


@a2a.agent("talks")
def talks(turn: Turn) -> str:
    """Send status messages from a plain function, and suppress every `Exception`."""
    begun_file(turn).touch()
    try:
        for number in range(int(LIFE / 0.02)):
            try:
                turn.blocking.say(f"{number}")
            except Exception:
                pass
            time.sleep(0.02)
    finally:
        Path(turn.text).write_text("tidied up")
    return "done"


@a2a.agent("draws")
def draws(turn: Turn) -> Iterator[str]:
    """Yield chunks from a plain generator until cancelled."""
    begun_file(turn).touch()
    try:
        for number in range(int(LIFE / 0.02)):
            yield f"{number} "
            time.sleep(0.02)
    finally:
        Path(turn.text).write_text("tidied up")
