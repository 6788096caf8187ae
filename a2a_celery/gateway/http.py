"""JSON-RPC, call contexts and the checks of bodies: what the SDK's HTTP endpoints take for granted of a request.

Each part names the gap that it closes and can go when the SDK closes it:

* a body that nobody could use (see ``bodies``) is refused with the protocol's error;
* JSON-RPC envelopes are those of JSON-RPC 2.0, and a notification gets no response;
* JSON-RPC's own errors carry typed details too (A2A specification 9.5);
* a refusal for a limit is 429, and says when to come again (see ``retry_after``).

Streams are written by ``streaming`` and ``sse``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError, MethodNotFoundError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidRequestError,
)
from a2a.utils.telemetry import SpanKind, trace_function
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .auth.identity import Identity
from .bodies import forget_body, read_bounded, require_json
from .cards import ADDRESS
from .event_json import event_json_in_pieces, task_json
from .extensions import CARDS, Endpoint
from .faults import RequestTooLargeError, rpc_status, to_a2a
from .handler import GatewayHandler
from .legacy import LegacyRpc
from .presence import CLIENT_CLOSED_REQUEST, while_there
from .protocol_versions import asked_version, require_version, served_as
from .request_parser import parse_json
from .rest_errors import rest_error
from .retry_after import REFUSALS, with_retry_after
from .sse import EventStream
from .streaming import rpc_stream
from .streams import VERSIONS
from .unary import Json, page_json, rpc_response

STREAMS = ("SendStreamingMessage", "SubscribeToTask")

_REASONS = {-32700: "INVALID_JSON", -32601: "METHOD_NOT_FOUND", -32603: "INTERNAL_ERROR", -32600: "INVALID_REQUEST"}


class CallContextBuilder(DefaultServerCallContextBuilder):
    """The SDK's, with the address of the agent, and where to leave the versions of streamed events."""

    def __init__(self, path: str, version: str = PROTOCOL_VERSION_1_0) -> None:
        self._path = path
        self._version = version

    def build_user(self, request: Request) -> User:
        """Who asks: whom our own authentication found, or somebody else's around this application."""
        user = request.scope.get("user")
        return user if isinstance(user, Identity) else super().build_user(request)

    def build(self, request: Request) -> ServerCallContext:
        """Return the call context of `request`.

        Raises:
            VersionNotSupportedError: the request is of another version.
        """
        asked = asked_version(request)
        require_version(asked, self._version)
        context = super().build(request)
        # the SDK checks the version too, but not its minor number
        context.state["headers"][VERSION_HEADER.lower()] = asked or self._version
        context.state[CARDS] = request.scope.setdefault(CARDS, [])
        context.state[ADDRESS] = lambda: (str(request.base_url), self._path)
        context.state[VERSIONS] = request.scope.setdefault(VERSIONS, [])
        context.state[REFUSALS] = request.scope.setdefault(REFUSALS, [])
        return context


class RpcDispatcher(JsonRpcDispatcher):
    """JSON-RPC 2.0. Its own errors carry typed details, and never the text of an exception.

    Requests of 0.3 go to `legacy`, the handler of the agent that is served to clients who name none.
    """

    request_handler: GatewayHandler

    def __init__(self, handler: GatewayHandler, path: str, legacy: GatewayHandler) -> None:
        super().__init__(handler, CallContextBuilder(path))
        older = CallContextBuilder(path, PROTOCOL_VERSION_0_3)
        self._legacy = LegacyRpc(legacy, older, legacy.leaving, legacy.clock)

    @trace_function(span_name=f"{__name__}.RpcDispatcher.handle_requests", kind=SpanKind.SERVER)
    async def handle_requests(self, request: Request) -> Response:
        """Return the response to `request`; an empty one to a notification, which is carried out all the same."""
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
        params: Any = parse_json({} if body.get("params") is None else body["params"], kind)
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
        if not isinstance(error, A2AError | JSONRPCError):
            error = InternalError()
        if isinstance(error, JSONRPCError) and error.data is None:
            error = error.model_copy(update={"data": [_error_info(_REASONS.get(error.code, "INVALID_REQUEST"))]})
        response: JSONResponse = super()._generate_error_response(request_id, error)
        if isinstance(error, A2AError):
            response.status_code = rpc_status(build_error_response(request_id, error))
        return response

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
    """Return the id of a request, None for none that a response may carry."""
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
    routes: Sequence[Route], max_bytes: int, around: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint
) -> list[Route]:
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

    return [
        type(route)(
            route.path,
            around(guard(route.endpoint)),
            methods=[method for method in sorted(route.methods or ()) if method != "HEAD"],
        )
        for route in routes
    ]


async def _answered(endpoint: Endpoint, request: Request) -> Response:
    response = await while_there(endpoint, request)
    forget_body(request)
    return with_retry_after(response, request)


def _rpc_error(error: JSONRPCError) -> JSONResponse:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)})


def _error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}
