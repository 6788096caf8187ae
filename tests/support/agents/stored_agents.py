"""Agents whose tasks, live and ended, make up the dump of a store. See `tests.tools.store_dump`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab

from a2a_celery import A2A, Rejected, Turn

app = Celery("stored", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(
    task_default_queue=os.environ.get("TEST_QUEUE", "celery"), result_backend=os.environ.get("TEST_RESULTS")
)
a2a = A2A(app)

YEAR = timedelta(days=365)
LARGE = "large" * 100_000


async def hang() -> None:
    """Wait until the run is cancelled."""
    await asyncio.get_running_loop().create_future()


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    """Return the message."""
    return turn.text


@a2a.agent("words")
async def words(turn: Turn) -> AsyncIterator[str]:
    """Stream the words of the message."""
    await turn.say("Counting the words.")
    for word in turn.text.split():
        yield f"{word} "


@a2a.agent("large")
async def large(turn: Turn) -> str:
    """Return a text that is stored as a blob."""
    return LARGE


@a2a.agent("asks")
async def asks(turn: Turn) -> str:
    """Ask two questions, the second with a schema."""
    name = await turn.ask("Name?")
    count = await turn.ask("How many?", schema=int)
    return f"{name}: {count}"


@a2a.agent("sleeps")
async def sleeps(turn: Turn) -> str:
    """Sleep for a year."""
    await turn.sleep(YEAR.total_seconds())
    return "slept"


@a2a.agent("approval")
async def approval(turn: Turn) -> str:
    """Wait for a signal."""
    return str(await turn.wait_for("approval"))


@a2a.agent("steps", max_attempts=3)
async def steps(turn: Turn) -> str:
    """Execute two steps. The first attempt waits between the steps if the message is "wait"."""
    first = await turn.step("first", str.upper, turn.text)
    if turn.text == "wait" and turn.attempt == 1:
        await turn.say("The first step is recorded.")
        await hang()
    second = await turn.step("second", str.title, first)
    return f"{first} {second}"


@a2a.agent("waits", on_message="steer")
async def waits(turn: Turn) -> None:
    """Wait until the task is cancelled."""
    await hang()


@a2a.agent("lost")
async def lost(turn: Turn) -> None:
    """Wait until the worker is killed."""
    await hang()


@a2a.agent("calls")
async def calls(turn: Turn) -> str:
    """Call the agent that the message names, and return its text."""
    return (await turn.call(turn.text, "Called.")).text


@a2a.agent("remembers", session=True)
async def remembers(turn: Turn) -> str:
    """Return all messages of the context."""
    texts = turn.session.state.setdefault("texts", [])
    texts.append(turn.text)
    return " ".join(texts)


@a2a.agent("fails")
async def fails(turn: Turn) -> str:
    """Raise an exception."""
    raise RuntimeError("a secret")


@a2a.agent("refuses")
async def refuses(turn: Turn) -> str:
    """Refuse the message."""
    raise Rejected("Not today.")


@a2a.agent("serial", one_run_per_context=True)
async def serial(turn: Turn) -> None:
    """Wait until the task is cancelled, one task of a context at a time."""
    await hang()


@a2a.agent("unserved", queue="a2a-queue-without-workers")
async def unserved(turn: Turn) -> str:
    """Return the message on a queue that no worker reads."""
    return turn.text


@app.task
def shout(text: str) -> str:
    """Return the text in upper case."""
    return text.upper()


a2a.expose(shout, name="shout")
a2a.schedule("nightly", crontab(hour="3"), "echo", "now", owner="ops")
