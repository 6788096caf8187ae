"""Agents for tests that stop workers during runs, added to the app of `agents`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_celery import Turn, current_turn
from tests.support.agents.basic import Patient, a2a, card
from tests.support.agents.endings import app  # and its settings

app.conf.worker_soft_shutdown_timeout = float(os.environ.get("TEST_SOFT_SHUTDOWN", "0"))


def write_line(task_id: str, word: str) -> None:
    """Append a line to the file of a task, for the test."""
    with (Path(os.environ["TEST_FOLDER"]) / task_id).open("a") as file:
        file.write(f"{word}\n")


async def do_work(task_id: str, how_long: str) -> None:
    """Sleep for a number of seconds. For "until", wait until the test has created a file."""
    if how_long == "until":
        while not (Path(os.environ["TEST_FOLDER"]) / f"{task_id}.may-end").exists():  # noqa: ASYNC110 - the test creates it
            await asyncio.sleep(0.05)
    else:
        await asyncio.sleep(float(how_long))


async def work(turn: Turn) -> AsyncIterator[object]:
    """Start an artifact, work, and complete the artifact. Clean up after a cancellation.

    The message lists the duration of each attempt: a number of seconds, or "until" to wait for a file of the test.
    """
    write_line(turn.task.id, f"begins {turn.attempt}")
    if turn.attempt == 1:
        await turn.artifact("finished", artifact_id="first")
    yield f"attempt {turn.attempt} "
    try:
        await do_work(turn.task.id, turn.text.split()[turn.attempt - 1])
    except asyncio.CancelledError:
        await asyncio.sleep(0.1)
        write_line(turn.task.id, "cleaned up")
        raise
    yield "done"


a2a.agent("worth-another", description="Again when its worker stops.", max_attempts=2)(work)
a2a.agent("once-only", description="At most once.")(work)


class Reports(Patient):
    """Executor that reports CANCELED after any cancellation, as frameworks do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.metadata.get("again"):
            return
        try:
            await super().execute(context, event_queue)
        except asyncio.CancelledError:
            await self.cancel(context, event_queue)


a2a.add_agent(card("reports-once"), Reports)


@a2a.agent("blocks-loop", max_attempts=2)
async def blocks_loop(turn: Turn) -> str:
    """Block the worker's event loop in the first attempt."""
    await turn.say("about to block")
    await asyncio.sleep(0.5)
    if turn.attempt == 1:
        write_line(turn.task.id, "blocked")
        time.sleep(60)  # noqa: ASYNC251
    return "done"


@a2a.agent("blocks-thread", max_attempts=2)
def blocks_thread(turn: Turn) -> str:
    """Block the thread in the first attempt."""
    turn.blocking.say("about to block")
    if turn.attempt == 1:
        write_line(turn.task.id, "blocked")
        time.sleep(60)
    return "done"


def plain(text: str) -> str:
    """Block for the number of seconds that the message lists for this attempt, even after a cancellation."""
    turn = current_turn()
    assert turn is not None
    write_line(turn.task.id, f"begins {turn.attempt}")
    time.sleep(float(text.split()[turn.attempt - 1]))
    return "done"


a2a.expose(app.task(name="tests.plain_again")(plain), name="plain-again", max_attempts=2)
a2a.expose(app.task(name="tests.plain_once")(plain), name="plain-once")
