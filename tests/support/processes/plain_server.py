"""SDK server in the test process, with the default request handler and the in-memory store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentInterface, Part, a2a_pb2_grpc
from starlette.applications import Starlette

from tests.support.agents.basic import card as agent_card
from tests.support.processes.fleet import free_port
from tests.support.processes.serving import serve_app


class Steps(AgentExecutor):
    """Executor that sends the texts that a test puts into a queue.

    Attributes:
        given: Queue of texts. None completes the task.
        sent: Texts that have been sent.
        begun: Ids of the tasks that the executor has started.
        canceled: Ids of the tasks that the executor has cancelled.
    """

    def __init__(self) -> None:
        self.given: asyncio.Queue[str | None] = asyncio.Queue()
        self.sent: list[str] = []
        self.begun: list[str] = []
        self.canceled: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.begun.append(context.task_id or "")
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        assert context.message is not None
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.start_work()
        while (text := await self.given.get()) is not None:
            await updater.add_artifact([Part(text=text)], artifact_id="a", append=bool(self.sent))
            self.sent.append(text)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()
        self.canceled.append(context.task_id or "")


@asynccontextmanager
async def plain_server(
    executor: AgentExecutor, *, streaming: bool = True, around: Callable[[Any], Any] = lambda asgi: asgi
) -> AsyncIterator[str]:
    """Serve an agent over all bindings of A2A 1.0 and 0.3, and yield the URL. `around` wraps the ASGI application."""
    card = agent_card("plain", streaming=streaming)
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        server = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)  # type: ignore[no-untyped-call]
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(address)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        url = await stack.enter_async_context(serve_app(around(Starlette(routes=routes))))
        for version in ("1.0", "0.3"):
            for binding, at in (("JSONRPC", f"{url}/"), ("HTTP+JSON", url), ("GRPC", address)):
                card.supported_interfaces.append(
                    AgentInterface(url=at, protocol_binding=binding, protocol_version=version)
                )
        yield url
