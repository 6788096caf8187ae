"""Agents that start a task on the server at the URL in the message, and then work until they are cancelled."""

from __future__ import annotations

import asyncio
from threading import Event

from a2a_celery import Turn, current_turn
from a2a_celery.client import RemoteAgent
from a2a_celery.client.calling import call_task
from tests.support.agents.basic import a2a, app

app.conf.worker_send_task_events = True
call = call_task(app)


@a2a.agent("streams")
async def streams(turn: Turn) -> None:
    """Start a remote task and read the stream until cancelled."""
    async with RemoteAgent(turn.text) as remote:
        async for _ in remote.session().stream("wait"):
            pass


async def submit(url: str) -> None:
    """Start a remote task at `url`."""
    async with RemoteAgent(url) as remote:
        await remote.submit(remote.session().message("wait"))


def wait_for_cancel(turn: Turn) -> None:
    """Block the thread until the run is cancelled."""
    while not turn.cancelled:
        Event().wait(0.02)


@a2a.agent("submits-in-a-thread")
def submits_in_a_thread(turn: Turn) -> None:
    """Start a remote task from a plain function."""
    asyncio.run(submit(turn.text))
    wait_for_cancel(turn)


@app.task(name="delegating.submits", shared=False)
def submits(url: str) -> None:
    """Start a remote task from a Celery task."""
    asyncio.run(submit(url))
    turn = current_turn()
    assert turn is not None
    wait_for_cancel(turn)


a2a.expose(submits, name="submits-in-a-task")


@a2a.agent("publishes-a-chain")
async def publishes_a_chain(turn: Turn) -> None:
    """Publish a chain whose first step waits for a remote task."""
    canvas = call.s(turn.text, "wait") | call.s(turn.text, "never")
    await asyncio.to_thread(canvas.apply_async)
    await asyncio.get_running_loop().create_future()
