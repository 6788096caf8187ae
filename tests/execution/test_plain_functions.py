"""Plain functions as agents, which call the methods of `turn.blocking`."""

from __future__ import annotations

import asyncio
import logging

import pytest
from celery import Celery

from a2a_celery import A2A, Turn, current_turn
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED

from .scene import TurnByTurn

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)


@a2a.agent("asks", description="Formats a coroutine.")
def asks(turn: Turn) -> str:
    return f"in {turn.ask('Which city?')}"


@a2a.agent("pays", description="Does not await a step.")
def pays(turn: Turn) -> str:
    turn.step("pay", print)  # type: ignore[unused-coroutine]
    return "paid"


@a2a.agent("saves", description="Does not await a checkpoint.", session=True)
def saves(turn: Turn) -> None:
    turn.session.checkpoint({})  # type: ignore[unused-coroutine]


@a2a.agent("receives", description="Iterates over messages.", on_message="steer")
def receives(turn: Turn) -> None:
    turn.incoming()


@app.task(shared=False)
def task_asks(text: str) -> str:
    turn = current_turn()
    assert turn is not None
    return f"in {turn.ask('Which city?')}"


@a2a.agent("runs-a-loop", description="Asks in a coroutine on an event loop of its thread.")
def runs_a_loop(turn: Turn) -> str:
    async def ask() -> str:
        return f"in {await turn.ask('Which city?')}"

    return asyncio.run(ask())


a2a.expose(task_asks, name="task-asks")


@pytest.mark.parametrize(
    ("agent", "method"),
    [
        ("asks", "ask"),
        ("pays", "step"),
        ("saves", "checkpoint"),
        ("receives", "incoming"),
        ("task-asks", "ask"),
    ],
)
async def test_a_plain_function_that_calls_an_async_method_fails(
    turns: TurnByTurn, caplog: pytest.LogCaptureFixture, agent: str, method: str
) -> None:
    """Python itself only emits a warning, and the text of the coroutine would be the result."""
    with caplog.at_level(logging.ERROR):
        assert await turns.begin(agent) == (FAILED, "The agent failed.")

    assert f"{method} is for async functions: call turn.blocking.{method}(…) in a plain function" in caplog.text


async def test_a_coroutine_on_a_loop_of_a_plain_function_calls_async_methods(turns: TurnByTurn) -> None:
    assert await turns.begin("runs-a-loop") == (INPUT_REQUIRED, "Which city?")
    assert await turns.answer("runs-a-loop", "Oslo") == ["in Oslo"]
