"""The JSON-RPC binding of protocol 1.0: the SDK's dispatcher with strict envelopes and typed error details.

* An envelope is one of JSON-RPC 2.0, and a notification gets no response.
* JSON-RPC's own errors carry typed details too (A2A specification 9.5).
* A stream is written page by page.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONRPCError, MethodNotFoundError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidRequestError,
)
from a2a.utils.telemetry import SpanKind, trace_function
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...lifecycle import Event
from ..handler import GatewayHandler
from ..middleware.bodies import parse_soon
from ..protocol_errors import rpc_status, to_a2a
from .call_context import CallContextBuilder, asked_version, require_version, served_as
from .errors import rpc_error_info
from .json_results import Json, event_json_in_pieces, event_line, one_line, page_json, rpc_response, task_json
from .legacy import LegacyRpc
from .request_parser import parse_json
from .sse import EventStream, frames_of

STREAMS = ("SendStreamingMessage", "SubscribeToTask")


logger = logging.getLogger(__name__)


INTERNAL_ERROR = -32603


_REASONS = {
    -32700: "INVALID_JSON",
    -32601: "METHOD_NOT_FOUND",
    INTERNAL_ERROR: "INTERNAL_ERROR",
    -32600: "INVALID_REQUEST",
}


class RpcDispatcher(JsonRpcDispatcher):
    """Dispatcher of JSON-RPC 2.0. Its errors carry typed details, and never the text of an exception.

    Requests of 0.3 go to `legacy`, the handler of the agent for clients that name no agent.
    """

    request_handler: GatewayHandler

    def __init__(self, handler: GatewayHandler, path: str, legacy: GatewayHandler) -> None:
        super().__init__(handler, CallContextBuilder(path))
        older = CallContextBuilder(path, PROTOCOL_VERSION_0_3)
        self._legacy = LegacyRpc(legacy, older, legacy.shutdown, legacy.clock)

    @trace_function(span_name=f"{__name__}.RpcDispatcher.handle_requests", kind=SpanKind.SERVER)
    async def handle_requests(self, request: Request) -> Response:
        """Return the response to `request`; an empty one to a notification, whose operation is executed too."""
        body = await request.json()
        request_id = _request_id(body)
        try:
            _require_envelope(body)
        except InvalidRequestError as e:
            return self._generate_error_response(request_id, e)
        try:
            response = await self._dispatch(request, body, request_id)
        except Exception as e:
            response = self._generate_error_response(request_id, to_a2a(e))
        if "id" in body:
            return response
        if isinstance(response, EventStream):
            await response.discard()
        return Response(status_code=204)

    async def _dispatch(self, request: Request, body: dict[str, Any], request_id: Any) -> Response:
        method, asked = body["method"], asked_version(request)
        is_legacy = self._legacy.supports_method(method)
        if is_legacy and served_as(asked) == PROTOCOL_VERSION_0_3:
            return await self._legacy.handle_request(request_id, method, body, request)
        kind = self.METHOD_TO_MODEL.get(method)
        if is_legacy:
            require_version(asked, PROTOCOL_VERSION_1_0)
        if kind is None:
            return self._generate_error_response(request_id, MethodNotFoundError())
        context = self._context_builder.build(request)
        given = {} if body.get("params") is None else body["params"]
        params: Any = await parse_soon(len(await request.body()), parse_json, given, kind)
        context.tenant = params.tenant
        context.state["method"] = method
        if "id" not in body and isinstance(params, SendMessageRequest):
            params.configuration.return_immediately = True  # no client waits for the end of the task
        if method in STREAMS:
            return await rpc_stream(self.request_handler, request_id, params, context)
        result = await self._process_non_streaming_request(params, context)
        if isinstance(result, Json):
            return rpc_response(request_id, result)
        return JSONResponse({"jsonrpc": "2.0", "id": request_id, "result": result})

    def _generate_error_response(
        self, request_id: str | int | None, error: Exception | JSONRPCError | A2AError
    ) -> JSONResponse:
        """Return the response for `error`. The SDK logs the client's text as it came, of any length."""
        if not isinstance(error, A2AError | JSONRPCError):
            error = InternalError()
        if isinstance(error, JSONRPCError) and error.data is None:
            error = error.model_copy(update={"data": [rpc_error_info(_REASONS.get(error.code, "INVALID_REQUEST"))]})
        answer = build_error_response(request_id, error)
        problem = answer["error"]
        level = logging.ERROR if problem["code"] == INTERNAL_ERROR else logging.WARNING
        logger.log(
            level, "JSON-RPC error %s of request %.100r: %.1000r", problem["code"], request_id, problem["message"]
        )
        return JSONResponse(answer, status_code=rpc_status(answer))

    async def _handle_send_message(  # type: ignore[override]  # like those below, for `_create_response` alone
        self, request_obj: SendMessageRequest, context: ServerCallContext
    ) -> Json:
        return Json(await event_json_in_pieces(await self.request_handler.on_message_send(request_obj, context)))

    async def _handle_cancel_task(  # type: ignore[override]
        self, request_obj: CancelTaskRequest, context: ServerCallContext
    ) -> Json:
        return Json(await task_json(await self.request_handler.on_cancel_task(request_obj, context)))

    async def _handle_get_task(  # type: ignore[override]
        self, request_obj: GetTaskRequest, context: ServerCallContext
    ) -> Json:
        return Json(await task_json(await self.request_handler.on_get_task(request_obj, context)))

    async def _handle_list_tasks(  # type: ignore[override]
        self, request_obj: ListTasksRequest, context: ServerCallContext
    ) -> Json:
        page = await self.request_handler.on_list_tasks(request_obj, context)
        return await page_json(page, request_obj.include_artifacts)


def _request_id(body: Any) -> str | int | None:
    """Return the id of a request, or None if a response cannot carry it."""
    found = body.get("id") if isinstance(body, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def _require_envelope(body: Any) -> None:
    """Raise InvalidRequestError unless `body` is a request object of JSON-RPC 2.0. Further members are ignored."""
    if isinstance(body, list):
        raise InvalidRequestError("Batches are not supported: send one request object")
    valid = (
        isinstance(body, dict)
        and body.get("jsonrpc") == "2.0"
        and isinstance(body.get("method"), str)
        and body["method"] != ""
        and (body.get("id") is None or _request_id(body) is not None)
        and isinstance(body.get("params"), dict | list | None)
    )
    if not valid:
        raise InvalidRequestError('Not a JSON-RPC request: it has jsonrpc, method, params and id, jsonrpc being "2.0"')


async def rpc_stream(handler: GatewayHandler, request_id: Any, params: Any, context: ServerCallContext) -> EventStream:
    """Return the response to a streaming method."""
    before, after = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": ', "}"

    async def say(event: Event) -> str:
        return before + await event_line(event) + after

    def fault(error: Exception) -> str:
        return one_line(json_utils.dumps(build_error_response(request_id, to_a2a(error))))

    pages = handler.message_pages if isinstance(params, SendMessageRequest) else handler.subscription_pages
    return await EventStream.start(frames_of(pages(params, context), say, fault), handler.shutdown, handler.clock)
