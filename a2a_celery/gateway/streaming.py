"""The endpoints that stream, for protocol 1.0: as the SDK's dispatchers do it, but page by page, not event by event."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.types import SendMessageRequest, SubscribeToTaskRequest
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_1_0
from a2a.utils.error_handlers import rest_stream_error_handler
from a2a.utils.telemetry import SpanKind, trace_class
from a2a.utils.version_validator import validate_version
from google.protobuf.json_format import Parse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..lifecycle import Event
from .event_json import event_json, one_line
from .faults import to_a2a
from .handler import GatewayHandler
from .rest_errors import rest_fault
from .sse import EventStream, frames_of
from .streams import Shown

Pages = AsyncGenerator[list[Shown], None]


def stream_routes(
    handler: GatewayHandler, context_builder: ServerCallContextBuilder, below: str = ""
) -> list[BaseRoute]:
    """Those of HTTP+JSON, `below` a path; they belong in front of the SDK's, which has them too."""
    streams = RestStreams(handler, context_builder)
    return [
        Route(f"{below}/message:stream", streams.on_message_send_stream, methods=["POST"]),
        Route(f"{below}/tasks/{{id}}:subscribe", streams.on_subscribe_to_task, methods=["GET", "POST"]),
    ]


@trace_class(include_list=["on_message_send_stream", "on_subscribe_to_task"], kind=SpanKind.SERVER)
class RestStreams(RestDispatcher):
    """HTTP+JSON."""

    request_handler: GatewayHandler

    @rest_stream_error_handler
    async def on_message_send_stream(self, request: Request) -> Response:
        """SendStreamingMessage."""

        @validate_version(PROTOCOL_VERSION_1_0)
        async def begin(context: ServerCallContext) -> Pages:
            params = SendMessageRequest()
            Parse(await request.body(), params, ignore_unknown_fields=True)
            pages: Pages = self.request_handler.message_pages(params, context)
            return pages

        return await _begun(await begin(self._build_call_context(request)), self.request_handler)

    @rest_stream_error_handler
    async def on_subscribe_to_task(self, request: Request) -> Response:
        """SubscribeToTask."""

        @validate_version(PROTOCOL_VERSION_1_0)
        async def begin(context: ServerCallContext) -> Pages:
            params = SubscribeToTaskRequest(id=request.path_params["id"])
            pages: Pages = self.request_handler.subscription_pages(params, context)
            return pages

        return await _begun(await begin(self._build_call_context(request)), self.request_handler)


async def _begun(pages: Pages, handler: GatewayHandler) -> EventStream:
    return await EventStream.begun(frames_of(pages, event_json, rest_fault), handler.leaving, handler.clock)


async def rpc_stream(handler: GatewayHandler, request_id: Any, params: Any, context: ServerCallContext) -> EventStream:
    """The answer to a streaming method of JSON-RPC."""
    before, after = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": ', "}"

    def say(event: Event) -> str:
        return before + event_json(event) + after

    def fault(error: Exception) -> str:
        return one_line(json_utils.dumps(build_error_response(request_id, to_a2a(error))))

    pages = handler.message_pages if isinstance(params, SendMessageRequest) else handler.subscription_pages
    return await EventStream.begun(frames_of(pages(params, context), say, fault), handler.leaving, handler.clock)
