"""Agents of this project's server. They do almost nothing, like the agents of the other servers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from enum import Enum
from typing import Literal

from celery import Celery
from pydantic import BaseModel

from a2a_celery import A2A, Turn

app = Celery("benchmarks")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.result_backend = os.environ.get("TEST_RESULTS")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    """Return the text of the message."""
    return turn.text


@a2a.agent("count")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Yield as many chunks as the message requests."""
    for number in range(int(turn.text)):
        yield f"{number} "


@a2a.agent("pace")
async def pace(turn: Turn) -> AsyncIterator[str]:
    """Yield the current time repeatedly. The message contains the number and the interval: "<chunks> <seconds>"."""
    chunks, pause = turn.text.split()
    for _ in range(int(chunks)):
        yield f"{time.monotonic():.6f} "
        await asyncio.sleep(float(pause))


@a2a.agent("silent", signals=("go",))
async def silent(turn: Turn) -> str:
    """Wait for the number of seconds in the message."""
    await asyncio.sleep(float(turn.text))
    return "done"


@a2a.agent("steered", on_message="steer")
async def steered(turn: Turn) -> str:
    """Wait for the number of seconds in the message. More messages may arrive while the agent waits."""
    await asyncio.sleep(float(turn.text))
    return "done"


Code = Enum("Code", {f"code_{number}": f"Region/Code {number}" for number in range(600)})  # type: ignore[misc]


class Sum(BaseModel):
    """Expression that contains expressions."""

    left: Sum | Product | Number
    right: Sum | Product | Number
    op: Literal["sum"]


class Product(BaseModel):
    """Expression that contains expressions."""

    left: Sum | Product | Number
    right: Sum | Product | Number
    op: Literal["product"]


class Number(BaseModel):
    """Expression without an operator."""

    value: float


@a2a.agent("asks-codes")
async def ask_codes(turn: Turn) -> str:
    """Ask for a list of codes."""
    return str(await turn.ask("Which codes?", schema=list[Code] | None))


@a2a.agent("asks-expression")
async def ask_expression(turn: Turn) -> str:
    """Ask for an expression."""
    return str(await turn.ask("Which expression?", schema=Sum | Product | Number))


@app.task(name="bare.echo")
def bare_echo(text: str) -> str:
    """Return the text, as a plain Celery task."""
    return text
