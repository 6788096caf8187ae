"""Agents for the chaos test. Each run writes marks of its start and its end to a file outside the store.

The text of a message is an `Order` as JSON. Each chunk of an agent contains the tag of the run, so that the log of a
task shows whether two runs wrote concurrently.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from celery import Celery

from a2a_celery import A2A, InputRequired, Turn

MARKS = "CHAOS_MARKS"
PROCESS = "CHAOS_PROCESS"
WINDOW = 2 * 86400
DIRECT = "tests.support.chaos.direct:Direct"

app = Celery("chaos")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_max_retries = None
a2a = A2A(app)


@dataclass(frozen=True)
class Order:
    """Order for an agent.

    Attributes:
        asks: Number of questions.
        chunks: Number of chunks.
        pause: Seconds before each chunk.
        fails: Fail after the last chunk.
    """

    asks: int = 0
    chunks: int = 1
    pause: float = 0.0
    fails: bool = False

    def as_text(self) -> str:
        """Return the order as the text of a message."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Mark:
    """Start or end of a run, as a line in the file of a task.

    Attributes:
        what: "start" or "stop".
        turn: Number of the turn.
        attempt: Number of the attempt.
        run: Random id of the run. Each chunk of the run contains the id.
        process: Name of the process.
        pid: Id of the process.
        real: Time of `time.time`.
        clock: Time of `time.monotonic`, which all processes of a machine share.
    """

    what: str
    turn: int
    attempt: int
    run: str
    process: str
    pid: int
    real: float
    clock: float

    @property
    def tag(self) -> str:
        """Prefix of the chunks of this run."""
        return f"{self.turn}.{self.attempt}.{self.run}"


def marks_of(folder: Path, task_id: str) -> list[Mark]:
    """Return a task's marks in the order of writing."""
    try:
        text = (folder / task_id).read_text()
    except FileNotFoundError:
        return []
    return [Mark(**json.loads(line)) for line in text.splitlines()]


@contextmanager
def mark_run(task_id: str, turn: int, attempt: int) -> Iterator[str]:
    """Mark the start and the end of a run, and yield the run's tag."""
    run = uuid4().hex[:8]

    def write(what: str) -> Mark:
        process = os.environ.get(PROCESS, "")
        mark = Mark(what, turn, attempt, run, process, os.getpid(), time.time(), time.monotonic())
        file = os.open(Path(os.environ[MARKS]) / task_id, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(asdict(mark)) + "\n").encode())
        finally:
            os.close(file)
        return mark

    start = write("start")
    try:
        yield start.tag
    finally:
        write("stop")


async def work(turn: Turn) -> AsyncIterator[str]:
    """Execute the order in the message."""
    order = Order(**json.loads(turn.text))
    with mark_run(turn.task_id, turn.number, turn.attempt) as tag:
        answers = [await turn.ask(f"Question {number}?") for number in range(order.asks)]
        for number in range(order.chunks):
            await asyncio.sleep(order.pause)
            yield f"{tag}.{number}={','.join(answers)} "
        if order.fails:
            raise RuntimeError("as ordered")


def sync_work(turn: Turn) -> Iterator[str]:
    """Execute the order in the message from a plain function."""
    order = Order(**json.loads(turn.text))
    with mark_run(turn.task_id, turn.number, turn.attempt) as tag:
        answers = [turn.blocking.ask(f"Question {number}?") for number in range(order.asks)]
        for number in range(order.chunks):
            time.sleep(order.pause)
            yield f"{tag}.{number}={','.join(answers)} "
        if order.fails:
            raise RuntimeError("as ordered")


async def talk(turn: Turn) -> AsyncIterator[str]:
    """Send a chunk for each message. Request input until the message is "stop"."""
    with mark_run(turn.task_id, turn.number, turn.attempt) as tag:
        await asyncio.sleep(0.3)
        yield f"{tag}.0={turn.text} "
        if turn.text != "stop":
            raise InputRequired("And?")


def card(name: str) -> AgentCard:
    return AgentCard(
        name=name,
        description=f"The agent {name}.",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id=name, name=name, description=name, tags=["test"])],
    )


ATTEMPTS = 3
a2a.agent("plain")(work)
a2a.agent("once", idempotency_window=WINDOW)(work)
a2a.agent("steady", idempotency_window=WINDOW, max_attempts=ATTEMPTS)(work)
a2a.agent("sync", idempotency_window=WINDOW)(sync_work)
a2a.agent("sync-steady", idempotency_window=WINDOW, max_attempts=ATTEMPTS)(sync_work)
a2a.agent("talk", idempotency_window=WINDOW)(talk)
a2a.agent("talk-steady", idempotency_window=WINDOW, max_attempts=ATTEMPTS)(talk)
a2a.add_agent(card("direct"), DIRECT, idempotency_window=WINDOW)
a2a.add_agent(card("direct-steady"), DIRECT, idempotency_window=WINDOW, max_attempts=ATTEMPTS)

MOST_RUNS = {"steady": ATTEMPTS, "sync-steady": ATTEMPTS, "talk-steady": ATTEMPTS, "direct-steady": ATTEMPTS}
"""Maximum number of runs of a message by agent. The default is one run."""
