"""Agents that start tasks of each other over HTTP, at the gateway in TEST_GATEWAY."""

from __future__ import annotations

import asyncio
import os

from a2a_celery import Turn
from a2a_celery.client import RemoteAgent
from a2a_celery.client.calling import call_task

from .agents import a2a, app

call = call_task(app)


def url_of(agent: str) -> str:
    """Return the address of an agent."""
    return f"{os.environ['TEST_GATEWAY']}/agents/{agent}"


@a2a.agent("waits")
async def waits(turn: Turn) -> None:
    """Wait until the task is cancelled."""
    await asyncio.get_running_loop().create_future()


async def begin(agent: str, text: str, *, cancel_with_parent: bool = True) -> str:
    """Start a task and return its id."""
    async with RemoteAgent(url_of(agent), cancel_with_parent=cancel_with_parent) as remote:
        return (await remote.submit(remote.session().message(text))).task_id


@a2a.agent("starts", cancel_grace=1)
async def starts(turn: Turn) -> str:
    """Start a task, and a second one that survives its parent; then end as the message says."""
    await begin("relays", "wait")
    await begin("waits", "survive", cancel_with_parent=False)
    await turn.say("started")
    if turn.text == "ask":
        await turn.ask("And now?")
    if turn.text == "wait":
        await asyncio.get_running_loop().create_future()
    return "done"


a2a.agent("mortal", description="Starts tasks on a worker that dies.", queue=f"{app.conf.task_default_queue}-mortal")(
    starts
)


@a2a.agent("relays")
async def relays(turn: Turn) -> None:
    """Start one more task and wait."""
    await begin("waits", "wait")
    await asyncio.get_running_loop().create_future()


@a2a.agent("steps")
async def steps(turn: Turn) -> None:
    """Publish two steps one after the other, and wait."""
    canvas = call.s(url_of("echo"), "first") | call.si(url_of("waits"), "second")
    await asyncio.to_thread(canvas.apply_async)
    await asyncio.get_running_loop().create_future()


@a2a.agent("recurses")
async def recurses(turn: Turn) -> str:
    """Call itself until the store refuses, and return the error."""
    async with RemoteAgent(url_of("recurses")) as remote:
        try:
            result = await remote.session().send(turn.text)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return result.text
