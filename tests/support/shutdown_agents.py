"""More agents for the tests, on the same app: what workers are doing when they are told to stop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_celery import Turn, current_turn

from .agents import Patient, a2a, card
from .endings import app  # and its settings

app.conf.worker_soft_shutdown_timeout = float(os.environ.get("TEST_SOFT_SHUTDOWN", "0"))


def leave_word(task_id: str, word: str) -> None:
    """Tells the test something that no client hears."""
    with (Path(os.environ["TEST_FOLDER"]) / task_id).open("a") as file:
        file.write(f"{word}\n")


async def working(task_id: str, how_long: str) -> None:
    """Takes its time."""
    if how_long == "until":
        while not (Path(os.environ["TEST_FOLDER"]) / f"{task_id}.may-end").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
    else:
        await asyncio.sleep(float(how_long))


async def work(turn: Turn) -> AsyncIterator[object]:
    """Begins an artifact, works and ends it; cleans up when stopped.

    The message says for each attempt how long it works: so many seconds, or "until" it is told that it may end.
    """
    leave_word(turn.task.id, f"begins {turn.attempt}")
    if turn.attempt == 1:
        await turn.artifact("finished", artifact_id="first")
    yield f"attempt {turn.attempt} "
    try:
        await working(turn.task.id, turn.text.split()[turn.attempt - 1])
    except asyncio.CancelledError:
        await asyncio.sleep(0.1)
        leave_word(turn.task.id, "cleaned up")
        raise
    yield "done"


a2a.agent("worth-another", description="Again when its worker stops.", max_attempts=2)(work)
a2a.agent("once-only", description="At most once.")(work)


class Reports(Patient):
    """Calls any cancellation a canceled task, as frameworks do."""

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
    """Blocks the event loop of all runs, the first time."""
    await turn.say("about to block")
    await asyncio.sleep(0.5)
    if turn.attempt == 1:
        leave_word(turn.task.id, "blocked")
        time.sleep(60)  # noqa: ASYNC251
    return "done"


@a2a.agent("blocks-thread", max_attempts=2)
def blocks_thread(turn: Turn) -> str:
    """Blocks its thread, the first time."""
    turn.blocking.say("about to block")
    if turn.attempt == 1:
        leave_word(turn.task.id, "blocked")
        time.sleep(60)
    return "done"


def plain(text: str) -> str:
    """Takes as many seconds as it is told for this attempt; nothing can stop it but the end of its process."""
    turn = current_turn()
    assert turn is not None
    leave_word(turn.task.id, f"begins {turn.attempt}")
    time.sleep(float(text.split()[turn.attempt - 1]))
    return "done"


a2a.expose(app.task(name="tests.plain_again")(plain), name="plain-again", max_attempts=2)
a2a.expose(app.task(name="tests.plain_once")(plain), name="plain-once")
