"""The endpoints that answer with tasks, for protocol 1.0: the SDK's dispatchers, but their JSON is written by
``proto_json``, which takes half of the time. What a client sees is the same."""

from __future__ import annotations

import json

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, SendMessageRequest, Task
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, PROTOCOL_VERSION_1_0
from a2a.utils.error_handlers import rest_error_handler
from a2a.utils.proto_utils import parse_params
from a2a.utils.telemetry import SpanKind, trace_class
from a2a.utils.version_validator import validate_version
from google.protobuf.json_format import Parse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .event_json import event_json, message_json
from .handler import GatewayHandler
from .proto_json import JsonWriter

_write_page = JsonWriter(lambda field: True).write
_write_page_without_artifacts = JsonWriter(lambda field: field is not Task.DESCRIPTOR.fields_by_name["artifacts"]).write


class Json(str):
    """A result that is JSON already."""

    __slots__ = ()


def page_json(page: ListTasksResponse, artifacts: bool) -> str:
    """`page` with its empty fields too, as clients know it; tasks without `artifacts` don't say that they have none."""
    return (_write_page if artifacts else _write_page_without_artifacts)(page)


def rpc_response(request_id: str | int | None, result: Json) -> Response:
    """The response of JSON-RPC with `result`."""
    said = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": {result}}}'
    return Response(said, media_type="application/json")


def unary_routes(
    handler: GatewayHandler, context_builder: ServerCallContextBuilder, below: str = ""
) -> list[BaseRoute]:
    """Those of HTTP+JSON, `below` a path; they belong in front of the SDK's, which has them too."""
    unary = RestTasks(handler, context_builder)
    return [
        Route(f"{below}/message:send", unary.on_message_send, methods=["POST"]),
        Route(f"{below}/tasks/{{id}}:cancel", unary.on_cancel_task, methods=["POST"]),
        Route(f"{below}/tasks/{{id}}", unary.on_get_task, methods=["GET"]),
        Route(f"{below}/tasks", unary.list_tasks, methods=["GET"]),
    ]


@trace_class(include_list=["on_message_send", "on_cancel_task", "on_get_task", "list_tasks"], kind=SpanKind.SERVER)
class RestTasks(RestDispatcher):
    """HTTP+JSON."""

    request_handler: GatewayHandler

    @rest_error_handler
    async def on_message_send(self, request: Request) -> Response:
        """SendMessage."""
        return _response(await self._sent(request, self._build_call_context(request)))

    @rest_error_handler
    async def on_cancel_task(self, request: Request) -> Response:
        """CancelTask."""
        return _response(await self._canceled(request, self._build_call_context(request)))

    @rest_error_handler
    async def on_get_task(self, request: Request) -> Response:
        """GetTask."""
        return _response(await self._task(request, self._build_call_context(request)))

    @rest_error_handler
    async def list_tasks(self, request: Request) -> Response:
        """ListTasks."""
        return _response(await self._page(request, self._build_call_context(request)))

    @validate_version(PROTOCOL_VERSION_1_0)
    async def _sent(self, request: Request, context: ServerCallContext) -> str:
        params = SendMessageRequest()
        Parse(await request.body(), params, ignore_unknown_fields=True)
        return event_json(await self.request_handler.on_message_send(params, context))

    @validate_version(PROTOCOL_VERSION_1_0)
    async def _canceled(self, request: Request, context: ServerCallContext) -> str:
        params = CancelTaskRequest(id=request.path_params["id"])
        return message_json(await self.request_handler.on_cancel_task(params, context))

    @validate_version(PROTOCOL_VERSION_1_0)
    async def _task(self, request: Request, context: ServerCallContext) -> str:
        params = GetTaskRequest()
        parse_params(request.query_params, params)
        params.id = request.path_params["id"]
        return message_json(await self.request_handler.on_get_task(params, context))

    @validate_version(PROTOCOL_VERSION_1_0)
    async def _page(self, request: Request, context: ServerCallContext) -> str:
        params = ListTasksRequest()
        parse_params(request.query_params, params)
        return page_json(await self.request_handler.on_list_tasks(params, context), params.include_artifacts)


def _response(said: str) -> Response:
    return Response(said, media_type=A2A_JSON_MEDIA_TYPE)
