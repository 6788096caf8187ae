"""Server of a2a-sdk 1.x with the sample executor, built as in the SDK's samples. Arguments: a port and a binding."""

from __future__ import annotations

import sys

import httpx
import uvicorn
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import AgentInterface
from sample import CARD, SampleExecutor
from starlette.applications import Starlette

port, binding = int(sys.argv[1]), sys.argv[2]
url = f"http://127.0.0.1:{port}"
CARD.supported_interfaces.append(AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0"))
configs = InMemoryPushNotificationConfigStore()
handler = DefaultRequestHandler(
    SampleExecutor(),
    InMemoryTaskStore(),
    CARD,
    push_config_store=configs,
    push_sender=BasePushNotificationSender(httpx.AsyncClient(), configs),
)
routes = [*create_agent_card_routes(CARD), *create_jsonrpc_routes(handler, "/"), *create_rest_routes(handler)]
uvicorn.run(Starlette(routes=routes), port=port, log_level="warning")
