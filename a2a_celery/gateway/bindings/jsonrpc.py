"""JSON-RPC binding of protocol 1.0. The binding differs from the SDK's dispatcher in three ways:

* Envelopes must conform to JSON-RPC 2.0, and a notification gets an empty response.
* Errors of JSON-RPC itself also have typed details (A2A specification 9.5).
* A stream is written page by page.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONRPCError, MethodNotFoundError
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import SendMessageRequest
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import A2AError, InvalidRequestError, UnsupportedOperationError, VersionNotSupportedError
from a2a.utils.telemetry import SpanKind, trace_function
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...lifecycle import Event
from ...operations.errors import MAX_ID_LENGTH
from ..handler import GatewayHandler
from ..middleware.bodies import parse_soon
from ..middleware.service_parameters import requested_version, require_version, served_as
from ..operations.limits import meter_of
from ..protocol_errors import rpc_status, to_a2a
from .endpoints import HttpCallContextBuilder, RpcId, rpc_error_info, rpc_error_json, rpc_id
from .json_results import event_json_in_pieces, event_line, message_json, one_line, page_json, rpc_response, task_json
from .legacy import LegacyRpc
from .request_parser import parse_json
from .sse import EventStream, frames_of

STREAMS = ("SendStreamingMessage", "SubscribeToTask")


logger = logging.getLogger(__name__)


NAMES_OF_03 = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
    "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
    "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
    "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
}
"""Names of the methods in protocol 0.3, by their names in 1.0."""

NAMES_OF_10 = {name: current_name for current_name, name in NAMES_OF_03.items()}

_REASONS = {
    -32700: "INVALID_JSON",
    -32601: "METHOD_NOT_FOUND",
    -32603: "INTERNAL_ERROR",
    -32600: "INVALID_REQUEST",
}


class RpcDispatcher:
    """JSON-RPC 2.0 dispatcher. Errors have typed details and never contain the text of an exception.

    Requests of protocol 0.3, in which no tenant can select an agent, are passed to `legacy`.
    """

    def __init__(self, handler: GatewayHandler, path: str, legacy: GatewayHandler) -> None:
        self._handler = handler
        self._call_contexts = HttpCallContextBuilder(path)
        older = HttpCallContextBuilder(path, PROTOCOL_VERSION_0_3)
        self._legacy = LegacyRpc(legacy, older, legacy.shutdown, legacy.clock)

    @trace_function(span_name=f"{__name__}.RpcDispatcher.handle_requests", kind=SpanKind.SERVER)
    async def handle_requests(self, request: Request) -> Response:
        """Return the response to `request`. A notification is executed and gets an empty response."""
        body = await request.json()
        request_id = rpc_id(body)
        try:
            _require_envelope(body)
        except InvalidRequestError as e:
            return _error_response(request_id, e)
        try:
            response = await self._dispatch(request, body, request_id)
        except Exception as e:
            response = _error_response(request_id, to_a2a(e))
        if "id" in body:
            return response
        if isinstance(response, EventStream):
            await response.discard()
        return Response(status_code=204)

    async def _dispatch(self, request: Request, body: dict[str, Any], request_id: Any) -> Response:
        method, version = body["method"], requested_version(request)
        is_legacy = self._legacy.supports_method(method)
        if is_legacy and served_as(version) == PROTOCOL_VERSION_0_3:
            return await self._legacy.handle_request(request_id, method, body, request)
        if is_legacy:
            require_version(version, PROTOCOL_VERSION_1_0)
            text = f"A2A 1.0 calls this method {NAMES_OF_10[method]}: send this name, or A2A-Version: 0.3"
            return _error_response(request_id, MethodNotFoundError(message=text))
        kind = JsonRpcDispatcher.METHOD_TO_MODEL.get(method)
        if kind is None:
            return _error_response(request_id, MethodNotFoundError())
        if version and served_as(version) == PROTOCOL_VERSION_0_3:
            rule = f"calls it {NAMES_OF_03[method]}" if method in NAMES_OF_03 else "lacks it"
            text = f"{method} is a method of A2A 1.0, and 0.3 {rule}: send A2A-Version: 1.0"
            raise VersionNotSupportedError(text, data={"version": version[:MAX_ID_LENGTH]})
        context = self._call_contexts.build(request)
        fields = {} if body.get("params") is None else body["params"]
        params: Any = await parse_soon(len(await request.body()), parse_json, fields, kind)
        context.tenant = params.tenant
        context.state["method"] = method
        if "id" not in body and isinstance(params, SendMessageRequest):
            params.configuration.return_immediately = True  # no client waits for the end of the task
        if method in STREAMS:
            return await rpc_stream(self._handler, request_id, params, context)
        return rpc_response(request_id, await self._result(method, params, context))

    async def _result(self, method: str, params: Any, context: ServerCallContext) -> list[bytes]:
        """Execute an operation that does not stream. Return its result as JSON, in pieces."""
        handler = self._handler
        result: Message
        match method:
            case "SendMessage":
                return await event_json_in_pieces(await handler.on_message_send(params, context), meter_of(context))
            case "GetTask":
                return await task_json(await handler.on_get_task(params, context), meter_of(context))
            case "CancelTask":
                return await task_json(await handler.on_cancel_task(params, context), meter_of(context))
            case "ListTasks":
                return await page_json(
                    await handler.on_list_tasks(params, context), params.include_artifacts, meter_of(context)
                )
            case "CreateTaskPushNotificationConfig":
                result = await handler.on_create_task_push_notification_config(params, context)
            case "GetTaskPushNotificationConfig":
                result = await handler.on_get_task_push_notification_config(params, context)
            case "ListTaskPushNotificationConfigs":
                result = await handler.on_list_task_push_notification_configs(params, context)
            case "DeleteTaskPushNotificationConfig":
                await handler.on_delete_task_push_notification_config(params, context)
                return [b"null"]
            case "GetExtendedAgentCard":
                card = await handler.on_get_extended_agent_card(params, context)
                return [json.dumps(MessageToDict(card)).encode()]
            case _:
                raise UnsupportedOperationError(f"Method {method} is not supported.")
        return [message_json(result).encode()]


def _error_response(request_id: RpcId, error: JSONRPCError | A2AError) -> JSONResponse:
    if isinstance(error, JSONRPCError) and error.data is None:
        error = error.model_copy(update={"data": [rpc_error_info(_REASONS.get(error.code, "INVALID_REQUEST"))]})
    answer = rpc_error_json(error, request_id)
    problem = answer["error"]
    # DEBUG, because most errors are mistakes of the caller. `to_a2a` logs the failures of the gateway, in all bindings.
    logger.debug("JSON-RPC error %s of request %.100r: %.1000r", problem["code"], request_id, problem["message"])
    return JSONResponse(answer, status_code=rpc_status(answer))


def _require_envelope(body: Any) -> None:
    """Raise InvalidRequestError unless `body` is a JSON-RPC 2.0 request object. Further members are ignored."""
    if isinstance(body, list):
        raise InvalidRequestError("Batches are not supported: send one request object")
    valid = (
        isinstance(body, dict)
        and body.get("jsonrpc") == "2.0"
        and isinstance(body.get("method"), str)
        and body["method"] != ""
        and (body.get("id") is None or rpc_id(body) is not None)
        and isinstance(body.get("params"), dict | list | None)
    )
    if not valid:
        raise InvalidRequestError('Not a JSON-RPC request: send jsonrpc, method, params and id, with "2.0" as jsonrpc')


async def rpc_stream(handler: GatewayHandler, request_id: Any, params: Any, context: ServerCallContext) -> EventStream:
    """Return the stream of events that is the response to a streaming method."""
    prefix, suffix = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": ', "}"
    meter = meter_of(context)

    async def say(event: Event) -> str:
        return prefix + await event_line(event, meter) + suffix

    def fault(error: Exception) -> str:
        return one_line(json_utils.dumps(rpc_error_json(to_a2a(error), request_id)))

    pages = handler.message_pages if isinstance(params, SendMessageRequest) else handler.subscription_pages
    return await EventStream.start(frames_of(pages(params, context), say, fault), handler.shutdown, handler.clock)
