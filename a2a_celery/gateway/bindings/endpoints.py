"""Common code of the HTTP bindings: call contexts, error responses, body checks, disconnects, limits and Retry-After.

In addition to the SDK, this module limits the size and the media type of bodies, counts requests that cannot be parsed,
and sends limit errors with status 429.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.utils import json_utils
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidRequestError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...integrations.starlette import drop_body
from ...operations.errors import LimitExceededError
from ..auth.refusal_log import SOURCE, RequestSource
from ..auth.schemes import Identity
from ..cards import ADDRESS
from ..handler import GatewayHandler
from ..middleware.bodies import BODIES, CHARGE, ArrivingBodies, read_bounded, require_json
from ..middleware.service_parameters import CARDS, Endpoint, requested_version, require_version
from ..operations.limits import METER, BodyCharge, ResponseMeter
from ..operations.turns import EVENT_IDS
from ..protocol_errors import (
    REACHED,
    RETRY_SECONDS,
    RequestTooLargeError,
    record_limit_error,
    rpc_status,
    to_a2a,
    with_retry_after,
)
from .json_results import one_line

DISCONNECT_POLL_INTERVAL = 2.0
"""Seconds between two checks of the client's connection during a long call."""

CLIENT_CLOSED_REQUEST = 499
"""HTTP status that proxies log for a request whose client has disconnected. No client receives it."""


class HttpCallContextBuilder(DefaultServerCallContextBuilder):
    """Call context builder that adds the agent's address and the state that a binding shares with the handler."""

    def __init__(self, path: str, version: str = PROTOCOL_VERSION_1_0) -> None:
        self._path = path
        self._version = version

    def build_user(self, request: Request) -> User:
        """Return the caller that this gateway or the surrounding application has authenticated."""
        user = request.scope.get("user")
        return user if isinstance(user, Identity) else super().build_user(request)

    def build(self, request: Request) -> ServerCallContext:
        """Return the call context of `request`.

        Raises:
            VersionNotSupportedError: The request is for a different version.
        """
        version = requested_version(request)
        require_version(version, self._version)
        context = super().build(request)
        # the SDK checks the version too, but not its minor number
        context.state["headers"][VERSION_HEADER.lower()] = version or self._version
        context.state[CARDS] = request.scope.setdefault(CARDS, [])
        context.state[ADDRESS] = lambda: (str(request.base_url), self._path)
        context.state[SOURCE] = partial(RequestSource.of_http, request)
        context.state[EVENT_IDS] = request.scope.setdefault(EVENT_IDS, [])
        context.state[METER] = request.scope.setdefault(METER, ResponseMeter())
        context.state[RETRY_SECONDS] = request.scope.setdefault(RETRY_SECONDS, [])
        context.state[REACHED] = request.scope.setdefault(REACHED, [])
        return context


CALLERS = HttpCallContextBuilder("")
"""Builder that is used to identify the caller of a request that has no call context yet."""


class A2AJsonResponse(JSONResponse):
    """JSON response with the media type of the HTTP+JSON binding."""

    media_type = A2A_JSON_MEDIA_TYPE


def rest_error(error: A2AError) -> JSONResponse:
    """Return the HTTP+JSON response for `error` (A2A specification 11.6)."""
    payload = build_rest_error_payload(error)
    return A2AJsonResponse(payload, status_code=payload["error"]["code"])


def rest_fault(error: Exception) -> str:
    """Return `error` on one line, as the data of a server-sent event."""
    return one_line(json_utils.dumps(build_rest_error_payload(to_a2a(error))))


RpcId = str | float | None
"""Id of a JSON-RPC request. The response repeats any string or number."""


def rpc_id(body: Any) -> RpcId:
    """Return the id of the JSON-RPC request `body`, or None if the id is invalid or missing."""
    request_id = body.get("id") if isinstance(body, dict) else None
    return request_id if isinstance(request_id, str | int | float) and not isinstance(request_id, bool) else None


def rpc_error_json(error: A2AError | JSONRPCError, request_id: RpcId = None) -> dict[str, Any]:
    """Return the JSON-RPC response for `error`. The SDK's function refuses an id that is a number with a fraction."""
    return build_error_response(None, error) | {"id": request_id}


def rpc_error(error: A2AError | JSONRPCError) -> JSONResponse:
    """Return the JSON-RPC response for `error` to a request whose id is unknown."""
    return JSONResponse(rpc_error_json(error))


class RpcRefusal(JSONResponse):
    """JSON-RPC response for `error` to a request whose body has not been read. If the request is small, its id is read
    while the response is sent."""

    def __init__(self, error: A2AError) -> None:
        self._envelope = rpc_error_json(error)
        super().__init__(self._envelope, status_code=rpc_status(self._envelope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        request = Request(scope, receive)
        if not may_be_large(request):
            with suppress(A2AError, ClientDisconnect):
                await require_json(request, SMALL_BODY)
                self.body = self.render(self._envelope | {"id": rpc_id(await request.json())})
                self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def rpc_error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}


ARRIVING = ArrivingBodies()
"""Bodies that are arriving at this process, for all agents and HTTP bindings."""

SMALL_BODY = 1 << 12
"""Maximum size in bytes of a body that is read even if the caller has no token."""


def guard_rpc(endpoint: Endpoint, max_bytes: int) -> Endpoint:
    """Wrap the JSON-RPC `endpoint` with checks of the request body. A failed check returns a JSON-RPC error."""

    async def guard_request(request: Request) -> Response:
        try:
            with ARRIVING.one_of(CALLERS.build_user(request).user_name) as count:
                await require_json(request, max_bytes, count=count)
        except LimitExceededError as e:
            return _refused_arrival(request, e, rpc_error)
        except RequestTooLargeError as e:
            return rpc_error(JSONRPCError(code=-32600, message=str(e), data=[rpc_error_info("REQUEST_TOO_LARGE")]))
        except InvalidRequestError as e:
            return rpc_error(JSONParseError(message=str(e), data=[rpc_error_info("INVALID_JSON")]))
        except ContentTypeNotSupportedError as e:
            return rpc_error(e)
        except ClientDisconnect:  # while the body was being read
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return await _respond(endpoint, request)

    return guard_request


def guard_rest(
    routes: Sequence[Route], max_bytes: int, around: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint
) -> list[Route]:
    """Wrap the endpoints of HTTP+JSON `routes` with checks of the request body. A failed check returns a
    google.rpc.Status error.

    Args:
        routes: Routes to wrap.
        max_bytes: Maximum size of a body.
        around: Function that decorates each checked endpoint.

    Returns:
        The new routes.
    """

    def guard(endpoint: Endpoint) -> Endpoint:
        async def guard_request(request: Request) -> Response:
            try:
                with ARRIVING.one_of(CALLERS.build_user(request).user_name) as count:
                    if request.method in ("POST", "PUT", "PATCH"):
                        await require_json(request, max_bytes, may_be_empty=True, count=count)
                    else:  # the body is unused, but the SDK reads it before it streams
                        await read_bounded(request, max_bytes, count)
            except LimitExceededError as e:
                return _refused_arrival(request, e, rest_error)
            except (RequestTooLargeError, ContentTypeNotSupportedError, InvalidRequestError) as e:
                return rest_error(e)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return await _respond(endpoint, request)

        return guard_request

    return [
        type(route)(
            route.path,
            around(guard(route.endpoint)),
            methods=[method for method in sorted(route.methods or ()) if method != "HEAD"],
        )
        for route in routes
    ]


def count_unparsed(
    endpoint: Endpoint, handler: GatewayHandler, format_error: Callable[[A2AError], JSONResponse]
) -> Endpoint:
    """Wrap `endpoint` so that it charges the caller's rate limit for large bodies and results, and for requests that
    fail before they reach an operation.

    A caller without a token gets an error before a large body is read. Without a rate limit, the result is `endpoint`.

    Args:
        endpoint: Endpoint to wrap.
        handler: Handler with the limits of the callers.
        format_error: Function that returns the response for a limit error.
    """
    limits, agent = handler.limits, handler.agent.name
    if not limits.counts_requests:
        return endpoint

    async def count_request(request: Request) -> Response:
        owner = CALLERS.build_user(request).user_name
        charge = request.scope[CHARGE] = BodyCharge(limits, agent, owner)
        meter = request.scope[METER] = ResponseMeter()
        try:
            if may_be_large(request):
                await limits.require_token(agent, owner)
            response = await endpoint(request)
            if not request.scope.get(REACHED):
                await limits.count_unparsed_request(agent, owner)
        except LimitExceededError as e:
            record_limit_error(request.scope.setdefault(RETRY_SECONDS, []), e)
            response = with_retry_after(format_error(e), request)
        finally:
            try:
                await meter.pay()  # first, because it lets the owner's next response be written
            finally:
                await charge.settle()
        return response

    return count_request


def may_be_large(request: Request) -> bool:
    """Return True if the body of `request` may exceed `SMALL_BODY`."""
    declared_length = request.headers.get("content-length", "0" if request.method == "GET" else "")
    return not declared_length.isdigit() or int(declared_length) > SMALL_BODY


def _refused_arrival(
    request: Request, error: LimitExceededError, format_error: Callable[[A2AError], JSONResponse]
) -> Response:
    """Return the response for a body that `ARRIVING` refused. `count_unparsed` handles the owner's rate limit."""
    if (error.data or {}).get("limit") != BODIES:
        raise error
    record_limit_error(request.scope.setdefault(RETRY_SECONDS, []), error)
    return with_retry_after(format_error(error), request)


async def _respond(endpoint: Endpoint, request: Request) -> Response:
    response = await cancel_on_disconnect(endpoint, request)
    drop_body(request)
    return with_retry_after(response, request)


async def cancel_on_disconnect(
    endpoint: Endpoint, request: Request, poll_interval: float = DISCONNECT_POLL_INTERVAL
) -> Response:
    """Return the response of `endpoint`, and cancel the endpoint when its client disconnects.

    Args:
        endpoint: Endpoint of the request.
        request: Request of the client.
        poll_interval: Seconds between two checks of the connection.
    """
    watch = _DisconnectWatch(request, poll_interval)
    try:
        return await endpoint(request)
    except asyncio.CancelledError:
        if not watch.is_the_reason():
            raise
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        watch.end()


class _DisconnectWatch:
    """Watch that cancels the current asyncio task when the client of `request` disconnects. A short call needs only a
    timer, not another asyncio task."""

    def __init__(self, request: Request, poll_interval: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working = task
        self._request = request
        self._poll_interval = poll_interval
        self._is_gone = False
        self._check_task: asyncio.Task[None] | None = None
        self._schedule()

    def is_the_reason(self) -> bool:
        """Return True if the disconnect is the only reason for the cancellation. Call this method only once."""
        return self._is_gone and self._working.uncancel() == 0

    def end(self) -> None:
        """Stop the checks."""
        self._timer.cancel()
        if self._check_task is not None:
            self._check_task.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._poll_interval, self._begin)

    def _begin(self) -> None:
        self._check_task = asyncio.create_task(self._check(), name="a2a-client-there")

    async def _check(self) -> None:
        if await self._request.is_disconnected():
            self._is_gone = True
            self._working.cancel()
        else:
            self._schedule()
