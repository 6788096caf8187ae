"""Agents that violate rules for agents and executors."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from a2a.helpers import new_data_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Part
from celery import Celery
from google.protobuf.struct_pb2 import Value

from a2a_celery import A2A, Failed, InputRequired, Turn

app = Celery("hard")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
a2a = A2A(app)


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    return turn.text


@a2a.agent("wrong-parts")
async def wrong_parts(turn: Turn) -> str:
    raise InputRequired("?", parts=["no part"])  # type: ignore[list-item]


@a2a.agent("unsendable-question")
async def unsendable_question(turn: Turn) -> str:
    raise InputRequired("?", parts=[Part(data=Value(number_value=float("nan")))])


@a2a.agent("exits-in-a-task")
async def exits_in_a_task(turn: Turn) -> str:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(asyncio.create_task(leave()))
    return "never"


@a2a.agent("blocks-its-loop")
async def blocks_its_loop(turn: Turn) -> str:
    turn.blocking.say("never")
    return "never"


@a2a.agent("hangs")
def hangs(turn: Turn) -> str:
    time.sleep(float(turn.text))
    return "done"


@a2a.agent("fails-with-parts")
async def fails_with_parts(turn: Turn) -> str:
    raise Failed("No such city.", parts=[new_data_part({"cities": ["Rome"]})])


class CancelsItself(AgentExecutor):
    """Executor whose `cancel` cancels the asyncio task of `execute` and waits for the task, as many executors do."""

    def __init__(self) -> None:
        self.running: asyncio.Task[None] | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).start_work()
        self.running = asyncio.current_task()
        await asyncio.sleep(3600)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert self.running is not None
        self.running.cancel()
        await self.running


class TidiesUp(AgentExecutor):
    """Executor that completes its task and then continues to work."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).complete()
        await asyncio.sleep(float(context.get_user_input()))
        print("tidied up", flush=True)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


def card(name: str) -> AgentCard:
    return AgentCard(name=name, description=name, version="1", capabilities=AgentCapabilities(streaming=True))


a2a.add_agent(card("cancels-itself"), CancelsItself)
a2a.add_agent(card("tidies-up"), TidiesUp)
a2a.add_agent(card("exits-when-built"), "tests.support.agents.exits:ExitsWhenBuilt")
