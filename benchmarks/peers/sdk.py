"""SDK server with equivalent agents, in one process and in memory, as in the SDK's documentation.

uvicorn benchmarks.peers.sdk:app
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, RequestHandler
from a2a.server.routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from starlette.applications import Starlette
from starlette.routing import Mount, Router

from .seeded import seeded_context, seeded_id


class Echo(AgentExecutor):
    """Agent that returns the text of the message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin_task(context, event_queue)
        await updater.add_artifact([new_text_part(context.get_user_input())])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class Count(Echo):
    """Agent that sends as many chunks as the message requests."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin_task(context, event_queue)
        chunks = int(context.get_user_input())
        for number in range(chunks):
            await updater.add_artifact(
                [new_text_part(f"{number} ")], artifact_id="count", append=number > 0, last_chunk=number == chunks - 1
            )
        await updater.complete()


class Pace(Echo):
    """Agent that sends the current time repeatedly. The message contains the number and the interval in seconds."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin_task(context, event_queue)
        chunks, pause = context.get_user_input().split()
        for number in range(int(chunks)):
            part = new_text_part(f"{time.monotonic():.6f} ")
            await updater.add_artifact([part], artifact_id="pace", append=number > 0)
            await asyncio.sleep(float(pause))
        await updater.complete()


class Silent(Echo):
    """Agent that waits for the number of seconds in the message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin_task(context, event_queue)
        await asyncio.sleep(float(context.get_user_input()))
        await updater.complete()


async def begin_task(context: RequestContext, event_queue: EventQueue) -> TaskUpdater:
    """Send the events SUBMITTED and WORKING, as this project does, and return the task's updater."""
    assert context.message is not None
    task = context.current_task or new_task_from_user_message(context.message)
    await event_queue.enqueue_event(task)
    updater = TaskUpdater(event_queue, task.id, task.context_id)
    await updater.start_work()
    return updater


def card(name: str) -> AgentCard:
    return AgentCard(name=name, version="1.0.0", capabilities=AgentCapabilities(streaming=True))


def mounted(name: str, handler: RequestHandler) -> Mount:
    """Mount `handler` at the path that an agent has in this project's gateway."""
    return Mount(f"/agents/{name}", app=Router([*create_rest_routes(handler)]))


def served(name: str, executor: AgentExecutor, store: InMemoryTaskStore) -> Mount:
    """Mount `executor` with the task store `store`."""
    return mounted(name, DefaultRequestHandler(executor, store, card(name)))


async def seed(store: InMemoryTaskStore, tasks: int) -> None:
    """Save `tasks` completed echoes with the ids of `seeded_id`."""
    for number in range(tasks):
        status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        status.timestamp.FromMilliseconds(1_700_000_000_000 + number)
        task = Task(id=seeded_id(number), context_id=seeded_context(number), status=status)
        message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
        message.task_id, message.context_id = task.id, task.context_id
        task.history.append(message)
        task.artifacts.append(Artifact(artifact_id=str(uuid4()), parts=message.parts))
        await store.save(task, ServerCallContext())


AGENTS = {"echo": Echo(), "count": Count(), "pace": Pace(), "silent": Silent()}
STORES = {name: InMemoryTaskStore() for name in AGENTS}


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Seed the store of the agent echo with BENCHMARK_SEEDED tasks."""
    await seed(STORES["echo"], int(os.environ.get("BENCHMARK_SEEDED", "0")))
    yield


app = Starlette(routes=[served(name, AGENTS[name], STORES[name]) for name in AGENTS], lifespan=lifespan)
