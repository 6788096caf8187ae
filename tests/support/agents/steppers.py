"""Agents that record execution activities: functions of each kind, an executor and a plain Celery task."""

from __future__ import annotations

import asyncio
import os
from threading import Event

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskStatus, TaskStatusUpdateEvent
from celery import Celery

from a2a_celery import A2A, InputRequired, Turn, current_execution, current_turn
from a2a_celery.lifecycle.states import COMPLETED, WORKING
from tests.support.agents.basic import card

app = Celery("steppers", broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["TEST_RESULTS"])
app.conf.task_default_queue = os.environ["TEST_QUEUE"]
a2a = A2A(app)


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    """Return the message without recording a step."""
    return turn.text


@a2a.agent("steps", show_execution=True)
async def steps(turn: Turn) -> str:
    """Record a model call and a tool call."""
    async with turn.model_call(model="m1"):
        await asyncio.sleep(0)
    async with turn.tool_call("search"):
        return "found"


@a2a.agent("blocking")
def blocking(turn: Turn) -> str:
    """Record a tool call within a model call, from a plain function."""
    with turn.blocking.model_call("m1"), turn.blocking.tool_call("search"):
        return "found"


@a2a.agent("waits")
async def waits(turn: Turn) -> str:
    """Hang in a tool call."""
    async with turn.tool_call("slow"):
        await asyncio.get_running_loop().create_future()
    return "never"


def history_of(turn: Turn) -> list[str]:
    """Return the state changes of the turn's execution."""
    return [
        f"{transition.before} to {transition.after} {' '.join(map(str, transition.detail.values()))}".strip()
        for transition in turn.execution.history
    ]


@a2a.agent("dies", max_attempts=2)
async def dies(turn: Turn) -> list[str]:
    """Hang in a tool call in the first attempt. In the next attempt, return the state changes of the execution."""
    if turn.attempt == 1:
        async with turn.tool_call("search"):
            await asyncio.get_running_loop().create_future()
    return history_of(turn)


@a2a.agent("fails", autoretry_for=(LookupError,), default_retry_delay=3, max_retries=1)
async def fails(turn: Turn) -> list[str]:
    """Fail in a tool call in the first attempt. In the retry, return the state changes of the execution."""
    if turn.retries == 0:
        async with turn.tool_call("search"):
            raise LookupError
    return history_of(turn)


@a2a.agent("converses", session=True)
async def converses(turn: Turn) -> list[str]:
    """Request input if the message is "ask". Otherwise, return the state changes of the execution."""
    turn.session.state["last"] = turn.text
    if turn.text == "ask":
        raise InputRequired("which?")
    return history_of(turn)


@a2a.agent("asks")
async def asks(turn: Turn) -> str:
    """Request input in a model call."""
    async with turn.model_call("m1"):
        if turn.number == 1:
            raise InputRequired("which?")
    return "that one"


class Executor(AgentExecutor):
    """Executor that records steps without a turn."""

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        execution = current_execution()
        assert execution is not None
        async with execution.tool_call("of an executor"):
            await queue.enqueue_event(TaskStatusUpdateEvent(status=TaskStatus(state=WORKING)))
        await queue.enqueue_event(TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED)))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        raise NotImplementedError


a2a.add_agent(card("executor"), Executor)


@app.task(name="steppers.plain", shared=False)
def plain(text: str) -> str:
    """Record a tool call in a plain Celery task."""
    turn, execution = current_turn(), current_execution()
    assert turn is not None
    assert execution is turn.execution
    with turn.blocking.tool_call("of a task"):
        Event().wait(0)
    return "done"


a2a.expose(plain, name="plain")
