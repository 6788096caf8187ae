"""Around the SDK's HTTP endpoints: what they take for granted about a request.

Small, and composed from outside; each part names the gap it closes and can go when the SDK closes it:

* a body that nobody could use (see ``bodies``) is refused with the protocol's error;
* JSON-RPC's own errors carry typed details too (A2A specification 9.5);
* a refusal for a limit is 429, and says when to come again (see ``retry_after``).

Streams are written by ``streaming`` and ``sse``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest
from a2a.utils.constants import PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
)
from a2a.utils.version_validator import validate_version
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from .auth.identity import Identity
from .bodies import forget_body, read_bounded, require_json
from .cards import ADDRESS
from .event_json import event_json, message_json
from .extensions import Endpoint
from .faults import RequestTooLargeError, invalid, rpc_status
from .handler import GatewayHandler
from .legacy import LegacyRpc
from .presence import CLIENT_CLOSED_REQUEST, while_there
from .rest_errors import rest_error
from .retry_after import REFUSALS, with_retry_after
from .sse import EventStream
from .streaming import rpc_stream
from .streams import VERSIONS
from .unary import Json, page_json, rpc_response

_REASONS = {-32700: "INVALID_JSON", -32601: "METHOD_NOT_FOUND", -32603: "INTERNAL_ERROR", -32600: "INVALID_REQUEST"}


class CallContextBuilder(DefaultServerCallContextBuilder):
    """The SDK's, the address of the agent, and where to leave the versions of streamed events."""

    def __init__(self, path: str) -> None:
        self._path = path

    def build_user(self, request: Request) -> User:
        """Who asks: whom our own authentication found, or somebody else's around this application."""
        user = request.scope.get("user")
        return user if isinstance(user, Identity) else super().build_user(request)

    def build(self, request: Request) -> ServerCallContext:
        """The call context of `request`."""
        context = super().build(request)
        version = request.query_params.get(VERSION_HEADER)
        if version:  # a service parameter may come in the query (A2A specification 3.6.1)
            context.state["headers"].setdefault(VERSION_HEADER.lower(), version)
        context.state[ADDRESS] = lambda: (str(request.base_url), self._path)
        context.state[VERSIONS] = request.scope.setdefault(VERSIONS, [])
        context.state[REFUSALS] = request.scope.setdefault(REFUSALS, [])
        return context


class RpcDispatcher(JsonRpcDispatcher):
    """The SDK's JSON-RPC endpoint; its own errors carry typed details, and never the text of an exception."""

    request_handler: GatewayHandler

    def __init__(self, handler: GatewayHandler, context_builder: CallContextBuilder) -> None:
        super().__init__(handler, context_builder, enable_v0_3_compat=True)
        self._v03_adapter = LegacyRpc(handler, context_builder, handler.leaving, handler.clock)

    def _generate_error_response(
        self, request_id: str | int | None, error: Exception | JSONRPCError | A2AError
    ) -> JSONResponse:
        if not isinstance(error, A2AError | JSONRPCError):
            error = InternalError()
        if isinstance(error, InvalidParamsError) and error.data and "parseError" in error.data:
            # the JSON parser of protobuf names the place; what comes from below it speaks of Python
            said = str(error.data["parseError"])
            error = invalid("params", said if said.startswith("Failed to parse") else "No parameters of this method.")
        if isinstance(error, InvalidRequestError) and error.data and "parseError" in error.data:
            error = InvalidRequestError("Not a JSON-RPC request: jsonrpc, method, params and id, and no other member")
        if isinstance(error, JSONRPCError) and error.data is None:
            error = error.model_copy(update={"data": [_error_info(_REASONS.get(error.code, "INVALID_REQUEST"))]})
        response: JSONResponse = super()._generate_error_response(request_id, error)
        if isinstance(error, A2AError):
            response.status_code = rpc_status(build_error_response(request_id, error))
        return response

    @validate_version(PROTOCOL_VERSION_1_0)
    async def _process_streaming_request(  # type: ignore[override]  # its result goes to `_create_response` alone
        self, request_id: Any, request_obj: Any, context: ServerCallContext
    ) -> EventStream:
        return await rpc_stream(self.request_handler, request_id, request_obj, context)

    async def _handle_send_message(  # type: ignore[override]  # like those below, for `_create_response` alone
        self, request_obj: SendMessageRequest, context: ServerCallContext
    ) -> Json:
        return Json(event_json(await self.request_handler.on_message_send(request_obj, context)))

    async def _handle_cancel_task(  # type: ignore[override]
        self, request_obj: CancelTaskRequest, context: ServerCallContext
    ) -> Json:
        return Json(message_json(await self.request_handler.on_cancel_task(request_obj, context)))

    async def _handle_get_task(  # type: ignore[override]
        self, request_obj: GetTaskRequest, context: ServerCallContext
    ) -> Json:
        return Json(message_json(await self.request_handler.on_get_task(request_obj, context)))

    async def _handle_list_tasks(  # type: ignore[override]
        self, request_obj: ListTasksRequest, context: ServerCallContext
    ) -> Json:
        page = await self.request_handler.on_list_tasks(request_obj, context)
        return Json(page_json(page, request_obj.include_artifacts))

    def _create_response(self, context: ServerCallContext, handler_result: Any) -> Response:
        if isinstance(handler_result, EventStream):
            return handler_result
        if isinstance(handler_result.get("result"), Json):
            return rpc_response(handler_result["id"], handler_result["result"])
        response: Response = super()._create_response(context, handler_result)
        response.status_code = rpc_status(handler_result)
        return response


def guard_rpc(endpoint: Endpoint, max_bytes: int) -> Endpoint:
    """`endpoint`, a JSON-RPC one, behind the checks of its body; errors as JSON-RPC says them."""

    async def guarded(request: Request) -> Response:
        try:
            await require_json(request, max_bytes)
        except RequestTooLargeError as e:
            return _rpc_error(JSONRPCError(code=-32600, message=str(e), data=[_error_info("REQUEST_TOO_LARGE")]))
        except InvalidRequestError as e:
            return _rpc_error(JSONParseError(message=str(e), data=[_error_info("INVALID_JSON")]))
        except ContentTypeNotSupportedError as e:
            return JSONResponse(build_error_response(None, e))
        except ClientDisconnect:  # in the midst of its body
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return await _answered(endpoint, request)

    return guarded


def guard_rest(
    routes: list[BaseRoute], max_bytes: int, around: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint
) -> list[BaseRoute]:
    """HTTP+JSON `routes` behind the checks of their bodies, with `around` about each; errors as google.rpc.Status."""

    def guard(endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                if request.method in ("POST", "PUT", "PATCH"):
                    await require_json(request, max_bytes, may_be_empty=True)
                else:  # nobody needs it, but the SDK reads it before it streams
                    await read_bounded(request, max_bytes)
            except A2AError as e:
                return rest_error(e)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return await _answered(endpoint, request)

        return guarded

    guarded_routes: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, Mount):
            below = guard_rest(list(route.routes), max_bytes, around)
            # a redirect would send on to whatever host the request says it is for
            guarded_routes.append(Mount(route.path, app=Router(below, redirect_slashes=False)))
        elif isinstance(route, Route):
            methods = sorted(route.methods or ())
            endpoint = around(guard(route.endpoint))
            guarded_routes.append(Route(route.path, endpoint, methods=[m for m in methods if m != "HEAD"]))
    return guarded_routes


async def _answered(endpoint: Endpoint, request: Request) -> Response:
    response = await while_there(endpoint, request)
    forget_body(request)
    return with_retry_after(response, request)


def _rpc_error(error: JSONRPCError) -> JSONResponse:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)})


def _error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}
