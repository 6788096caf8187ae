"""The SDK's own server with the same agents, in one process and in memory, as its documentation has it.

uvicorn benchmarks.peers.sdk:app
"""

from __future__ import annotations

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard
from starlette.applications import Starlette
from starlette.routing import Mount, Router


class Echo(AgentExecutor):
    """Says it back."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begun(context, event_queue)
        await updater.add_artifact([new_text_part(context.get_user_input())])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class Count(Echo):
    """Gives as many chunks as it is told."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begun(context, event_queue)
        chunks = int(context.get_user_input())
        for number in range(chunks):
            await updater.add_artifact(
                [new_text_part(f"{number} ")], artifact_id="count", append=number > 0, last_chunk=number == chunks - 1
            )
        await updater.complete()


async def begun(context: RequestContext, event_queue: EventQueue) -> TaskUpdater:
    """The updater of a task that is shown as SUBMITTED and WORKING, as our runs are."""
    assert context.message is not None
    task = context.current_task or new_task_from_user_message(context.message)
    await event_queue.enqueue_event(task)
    updater = TaskUpdater(event_queue, task.id, task.context_id)
    await updater.start_work()
    return updater


def served(name: str, executor: AgentExecutor) -> Mount:
    """`executor` under the path that our gateway would give it."""
    card = AgentCard(name=name, version="1.0.0", capabilities=AgentCapabilities(streaming=True))
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    return Mount(f"/agents/{name}", app=Router([*create_rest_routes(handler)]))


app = Starlette(routes=[served("echo", Echo()), served("count", Count())])
