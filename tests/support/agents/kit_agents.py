"""Agents for the conformance tests of the test kit, which run in a simulation and on a real fleet.

The agents record their progress in files in the folder KIT_FOLDER, because they may run in other processes than the
test.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part
from celery import Celery, Task
from pydantic import BaseModel

from a2a_celery import A2A, Failed, Turn

app = Celery("kit", broker="redis://127.0.0.1:1/0", set_as_current=False)
# The simulation and the fleet replace all servers of an app that is configured for production.
app.conf.broker_read_url = app.conf.broker_write_url = "rediss://127.0.0.1:1/1"
app.conf.broker_use_ssl = app.conf.redis_backend_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
a2a = A2A(app)


def note(task_id: str, place: str) -> None:
    """Append the name of a place to the file of a task."""
    with (Path(os.environ["KIT_FOLDER"]) / task_id).open("a") as file:
        file.write(f"{place}\n")


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    """Return the message."""
    return turn.text


@a2a.agent("words")
async def words(turn: Turn) -> AsyncIterator[str]:
    """Stream the words of the message."""
    for word in turn.text.split():
        yield f"{word} "


class Shouter(AgentExecutor):
    """Executor that returns the message in upper case."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([Part(text=context.get_user_input().upper())])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


SHOUTER = AgentCard(
    name="Shouter",
    description="Answers in upper case.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="shout", name="shout", description="Answers in upper case.", tags=["test"])],
)
a2a.add_agent(SHOUTER, Shouter, name="shouter")


@a2a.agent("asker")
async def asker(turn: Turn) -> str:
    """Ask two questions."""
    first = await turn.ask("First?")
    second = await turn.ask("Second?")
    return f"{first} {second}"


class Booking(BaseModel):
    """Answer that names the table to book."""

    people: int
    name: str


@a2a.agent("booker")
async def booker(turn: Turn) -> str:
    """Ask a question with a schema."""
    choice = await turn.ask("Which table?", schema=Booking)
    return f"{choice.people} for {choice.name}"


@a2a.agent("silent", cancel_grace=2)
async def silent(turn: Turn) -> None:
    """Work until cancelled."""
    note(turn.task_id, "working")
    await asyncio.Event().wait()


@a2a.agent("failing")
async def failing(turn: Turn) -> None:
    """Fail with a text for the client. If the message is "secret", raise a different exception."""
    if turn.text == "secret":
        raise ValueError("a secret")
    raise Failed(turn.text)


@a2a.agent("stepper", max_attempts=3)
async def stepper(turn: Turn) -> str:
    """Execute three steps. In the first attempt, the second step hangs."""

    async def work(name: str) -> str:
        note(turn.task_id, f"{name} in attempt {turn.attempt}")
        if name == "b" and turn.attempt == 1:
            await asyncio.Event().wait()
        return name

    return "".join([await turn.step(name, work, name) for name in "abc"])


@a2a.agent("fragile")
async def fragile(turn: Turn) -> None:
    """Work until the worker is killed, without a further attempt."""
    note(turn.task_id, "working")
    await asyncio.Event().wait()


@a2a.agent("retrying", autoretry_for=(ConnectionError,), default_retry_delay=2, max_retries=2)
async def retrying(turn: Turn) -> str:
    """Succeed in the second attempt."""
    if turn.retries == 0:
        raise ConnectionError
    return f"retry {turn.retries}"


@a2a.agent("sleeper")
async def sleeper(turn: Turn) -> str:
    """Sleep for six seconds, so that the run is suspended."""
    await turn.sleep(6)
    return "awake"


@a2a.agent("waiter", signals=("approval",))
async def waiter(turn: Turn) -> str:
    """Wait for a signal."""
    try:
        approval = await turn.wait_for("approval", timeout=float(turn.text))
    except TimeoutError:
        return "too late"
    return f"approved by {approval.payload['by']}"


@a2a.agent("caller")
async def caller(turn: Turn) -> str:
    """Call the agent "echo"."""
    return (await turn.call("echo", turn.text)).text * 2


@app.task(shared=False)
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@app.task(shared=False)
def broken(text: str) -> None:
    """Fail."""
    raise ValueError("a secret")


@app.task(bind=True, autoretry_for=(ConnectionError,), default_retry_delay=2, retry_jitter=False, shared=False)
def flaky(self: Task, text: str) -> str:
    """Succeed in the second attempt."""
    if self.request.retries == 0:
        raise ConnectionError
    return f"{text} {self.request.retries}"


for task in (add, broken, flaky):
    a2a.expose(task)
