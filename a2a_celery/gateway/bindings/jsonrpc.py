"""JSON-RPC binding of protocol 1.0. The binding differs from the SDK's dispatcher in three ways:

* Envelopes must conform to JSON-RPC 2.0, and a notification gets an empty response.
* Errors of JSON-RPC itself also have typed details (A2A specification 9.5).
* A stream is written page by page.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from a2a.server.jsonrpc_models import JSONRPCError, MethodNotFoundError
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import SendMessageRequest
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import A2AError, InvalidRequestError, VersionNotSupportedError
from a2a.utils.telemetry import SpanKind, trace_function
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...operations.errors import MAX_ID_LENGTH
from ..call import Call, requested_version, require_version, served_as
from ..gate import SMALL, process
from ..handler import OPERATIONS
from ..pipeline import Operation, perform, stream
from ..protocol_errors import rpc_status, to_a2a
from .endpoints import Address, LegacyCalls, RpcId, call_of, rpc_error_info, rpc_error_json, rpc_id
from .json_results import one_line, rpc_result, write_result
from .legacy import LegacyRpc
from .request_parser import parse_json
from .sdk_handler import SdkHandler
from .sse import EventStream, frames_of, write_page

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
    """JSON-RPC 2.0 dispatcher of the agents at an address. Errors have typed details and never contain the text of an
    exception.

    Requests of protocol 0.3, in which no tenant can select an agent, are passed to the adapter of the SDK.
    """

    def __init__(self, address: Address) -> None:
        self._shutdown, self._clock = address.handler.shutdown, address.handler.clock
        self._legacy = LegacyRpc(SdkHandler(), LegacyCalls(), self._shutdown, self._clock)

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

    async def _dispatch(self, request: Request, body: dict[str, Any], request_id: RpcId) -> Response:
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
        call = call_of(request)
        fields = {} if body.get("params") is None else body["params"]
        params: Any = await process(call.heavy_work(), len(await request.body()) > SMALL, parse_json, fields, kind)
        call.tenant = params.tenant
        if "id" not in body and isinstance(params, SendMessageRequest):
            params.configuration.return_immediately = True  # no client waits for the end of the task
        operation = OPERATIONS[method]
        if operation.is_stream:
            return await self._stream(operation, params, call, request_id)

        async def write(result: Any) -> Response:
            content = await write_result(result, params, call.heavy_work(), partial(rpc_result, request_id))
            return Response(content, media_type="application/json")

        return await perform(operation, params, call, write)

    async def _stream(self, operation: Operation, params: Any, call: Call, request_id: RpcId) -> EventStream:
        def fault(error: Exception) -> str:
            return one_line(json_utils.dumps(rpc_error_json(to_a2a(error), request_id)))

        write = partial(write_page, work=call.heavy_work(), wrap=partial(rpc_result, request_id))
        frames = frames_of(stream(operation, params, call, write), fault)
        return await EventStream.start(frames, self._shutdown, self._clock)


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
