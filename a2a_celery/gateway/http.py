"""Around the SDK's HTTP endpoints: what they take for granted about a request, and ids for what they stream.

Small, and composed from outside; each part names the gap it closes and can go when the SDK closes it:

* a body that nobody could use (see ``bodies``) is refused with the protocol's error;
* JSON-RPC's own errors carry typed details too (A2A specification 9.5);
* a refusal for a limit is 429, and says when to come again (see ``retry_after``);
* SSE frames carry ``id: <version>``, so that a client can come back with ``Last-Event-ID``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_rest_error_payload
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
)
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from .auth.identity import Identity
from .bodies import read_bounded, require_json
from .cards import ADDRESS
from .extensions import Endpoint
from .faults import RequestTooLargeError, invalid, rpc_status, to_a2a
from .legacy import LegacyRpc
from .presence import CLIENT_CLOSED_REQUEST, while_there
from .retry_after import REFUSALS, with_retry_after

VERSIONS = "a2a_versions"
"""Where, in a request's scope and its call context, the versions of streamed events are left for the SSE writer."""

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
        context.state[VERSIONS] = request.scope.setdefault(VERSIONS, deque())
        context.state[REFUSALS] = request.scope.setdefault(REFUSALS, [])
        return context


class RpcDispatcher(JsonRpcDispatcher):
    """The SDK's JSON-RPC endpoint; its own errors carry typed details, and never the text of an exception."""

    def __init__(self, handler: RequestHandler, context_builder: CallContextBuilder) -> None:
        super().__init__(handler, context_builder, enable_v0_3_compat=True)
        self._v03_adapter = LegacyRpc(handler, context_builder)

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

    def _create_response(self, context: ServerCallContext, handler_result: Any) -> Response:
        response: Response = super()._create_response(context, handler_result)
        if isinstance(handler_result, dict):
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
        response = await _refused_before(await while_there(endpoint, request), request)
        return with_retry_after(_with_ids(response, request), request)

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
            return with_retry_after(await _begun(await while_there(endpoint, request), request), request)

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


def rest_error(error: A2AError) -> JSONResponse:
    """`error` in the HTTP+JSON binding (A2A specification 11.6)."""
    payload = build_rest_error_payload(error)
    return JSONResponse(payload, status_code=payload["error"]["code"])


def _rpc_error(error: JSONRPCError) -> JSONResponse:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)})


def _error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}


async def _begun(response: Response, request: Request) -> Response:
    """`response`; if it is a stream, then not before its first frame, so that an error is answered as one.

    The SDK does the same for protocol 1.0, but not for 0.3.
    """
    if isinstance(response, EventSourceResponse):
        frames: Any = response.body_iterator
        try:
            first = [await anext(frames)]
        except StopAsyncIteration:
            first = []
        except Exception as e:
            return rest_error(to_a2a(e))
        response.body_iterator = _continued(first, frames)
    return _with_ids(response, request)


async def _refused_before(response: Response, request: Request) -> Response:
    """`response`; a JSON-RPC stream of 0.3 whose only frame says that it was refused, as that answer.

    The SDK has looked at the first frame of the others.
    """
    if not isinstance(response, EventSourceResponse):
        return response
    frames: Any = response.body_iterator
    first = await anext(frames, None)
    if first is not None and request.scope.get(REFUSALS):
        return JSONResponse(json.loads(str(_frame(first, None).data)))
    response.body_iterator = _behind(first, frames)
    return response


async def _behind(first: Any, frames: Any) -> AsyncIterator[Any]:
    async with aclosing(frames):
        if first is not None:
            yield first
        async for frame in frames:
            yield frame


async def _continued(first: list[Any], frames: Any) -> AsyncIterator[Any]:
    async with aclosing(frames):
        for frame in first:
            yield frame
        try:
            async for frame in frames:
                yield frame
        except Exception as e:
            payload = build_rest_error_payload(to_a2a(e))
            yield ServerSentEvent(data=json.dumps(payload), event="error")


def _with_ids(response: Response, request: Request) -> Response:
    if isinstance(response, EventSourceResponse):
        response.body_iterator = _identified(response.body_iterator, request.scope.get(VERSIONS, deque()))
    return response


async def _identified(frames: Any, versions: deque[int | None]) -> AsyncIterator[Any]:
    """Gives each frame the version of its event; the handler leaves one for each event, in order."""
    async for frame in frames:
        version = versions.popleft() if versions else None
        yield _frame(frame, version)


def _frame(frame: Any, version: int | None) -> ServerSentEvent:
    match frame:
        case ServerSentEvent():
            made = frame
        case dict():
            made = ServerSentEvent(**frame)
        case _:
            made = ServerSentEvent(data=frame)
    if version is not None:
        made.id = str(version)
    made.data = _one_line(str(made.data))
    return made


_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")


def _one_line(data: str) -> str:
    """`data`, which is JSON, with characters escaped that end a line for Python, though neither for JSON nor for SSE.

    httpx, and with it the SDK's own client, would take the frame apart at them.
    """
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data
