"""Agents for the ways in which a run can terminate, and settings of Celery's time limits, added to the app of
`agents`."""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from celery.exceptions import Reject

from a2a_celery import AuthRequired, Turn
from tests.support.agents.basic import Patient, a2a, app, card


@a2a.agent("ends")
async def ends(turn: Turn) -> str:
    """Terminate in the way that the message names."""
    return end(turn.text)


@a2a.agent("sync-ends")
def sync_ends(turn: Turn) -> str:
    """Terminate in the way that the message names, from a plain function."""
    return f"{turn.ask('Which city?')}" if turn.text == "missing await" else end(turn.text)


def end(how: str) -> str:
    """Raise the named exception, or terminate the process in the named way."""
    match how:
        case "sys.exit":
            sys.exit(3)
        case "os._exit":
            os._exit(3)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SystemExit" | "KeyboardInterrupt" | "MemoryError" | "StopIteration":
            raise getattr(builtins, how)("a secret")
        case "CancelledError":
            raise asyncio.CancelledError
        case "Reject":
            raise Reject("a secret", requeue=False)
    return "went on"


@a2a.agent("limited", time_limit=2)
async def limited(turn: Turn) -> AsyncIterator[str]:
    """Stream for a minute, with a time limit of two seconds."""
    for number in range(300):
        yield f"{number} "
        await asyncio.sleep(0.2)


@a2a.agent("idle", idle_limit=1.5)
async def idle(turn: Turn) -> AsyncIterator[str]:
    """Stream for longer than the idle limit, and then hang without output."""
    for number in range(4):
        yield f"{number} "
        await asyncio.sleep(0.5)
    await asyncio.sleep(60)


class Framework(Patient):
    """Executor that reports CANCELED after any cancellation, as frameworks do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        try:
            await super().execute(context, event_queue)
        except asyncio.CancelledError:
            await self.cancel(context, event_queue)


a2a.add_agent(card("framework"), Framework, time_limit=2)
a2a.add_agent(card("exits-when-loaded"), "tests.support.agents.exits:ExitsWhenBuilt")


@a2a.agent("stuck")
async def stuck(turn: Turn) -> str:
    """Block the event loop."""
    time.sleep(float(turn.text))  # noqa: ASYNC251
    return "done"


@a2a.agent("authorize")
async def authorize(turn: Turn) -> str:
    """Request an authorization."""
    raise AuthRequired("Who are you?")


@a2a.agent("until")
async def until(turn: Turn) -> str:
    """Work until the file named in the message exists."""
    while not Path(turn.text).exists():  # noqa: ASYNC110, ASYNC240 - another process creates the file
        await asyncio.sleep(0.02)
    return "done"


@a2a.agent("perishable", expires=1)
async def perishable(turn: Turn) -> str:
    """Return a text. Runs of this agent expire after a second in the queue."""
    return "fresh"


if "TEST_GHOST" in os.environ:

    @a2a.agent("ghost")
    async def ghost(turn: Turn) -> str:
        """Return a text. Only processes with TEST_GHOST have this agent."""
        return "boo"


app.conf.worker_send_task_events = "TEST_EVENTS" in os.environ
app.conf.task_soft_time_limit = float(os.environ.get("TEST_SOFT_TIME_LIMIT", "0")) or None
app.conf.task_time_limit = float(os.environ.get("TEST_TIME_LIMIT", "0")) or None


@a2a.agent("unlucky", autoretry_for=(LookupError,), default_retry_delay=3600)
async def unlucky(turn: Turn) -> str:
    """Fail. The retry is due after an hour."""
    raise LookupError(turn.text)


@a2a.agent("unlucky-soon", autoretry_for=(LookupError,))
async def unlucky_soon(turn: Turn) -> str:
    """Fail. The retry is due after Celery's default delay of three minutes."""
    raise LookupError(turn.text)


@a2a.agent("phoenix", max_attempts=2)
async def phoenix(turn: Turn) -> str:
    """Terminate the process in the first attempt."""
    return end("os._exit") if turn.attempt == 1 else "risen"
