"""Common code of the HTTP bindings: calls, bodies, error responses, disconnects and Retry-After."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder, ServerCallContextBuilder
from a2a.utils import json_utils
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_rest_error_payload
from a2a.utils.errors import A2AError, InvalidRequestError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...integrations.starlette import drop_body
from ...operations.errors import LimitExceededError
from ...operations.limits import REQUESTS
from ..auth.refusal_log import RequestSource
from ..auth.schemes import Identity
from ..call import Call, active_extensions, requested_version, require_version
from ..gate import SMALL
from ..handler import GatewayHandler
from ..middleware.bodies import may_be_large, receive_body, require_json
from ..protocol_errors import RequestTooLargeError, rpc_status, to_a2a, too_many_requests
from .json_results import one_line

DISCONNECT_POLL_INTERVAL = 2.0
"""Seconds between two checks of the client's connection during a long call."""

CLIENT_CLOSED_REQUEST = 499
"""HTTP status that proxies log for a request whose client has disconnected. No client receives it."""

CALL = "a2a_call"
"""Key of the scope of a request for its call, until the response begins."""

_SDK_CONTEXTS = DefaultServerCallContextBuilder()

Endpoint = Callable[[Request], Awaitable[Response]]

Format = Callable[[A2AError], JSONResponse]
"""Function that returns the response for an error in the format of a binding."""


def user_of(request: Request) -> User:
    """Return the caller that this gateway or the surrounding application has authenticated."""
    user = request.scope.get("user")
    return user if isinstance(user, Identity) else _SDK_CONTEXTS.build_user(request)


class Address(NamedTuple):
    """Address at which agents are served over HTTP.

    Attributes:
        path: Path of the address, or "" for the root.
        handler: Handler of the agent or, at a shared address, of requests without a tenant.
        agents: Handlers by the names of their agents at a shared address, where the tenant selects the agent, or None.
    """

    path: str
    handler: GatewayHandler
    agents: Mapping[str, GatewayHandler] | None = None

    def call(self, request: Request) -> Call:
        """Return the call of `request`."""
        return Call(
            user=user_of(request),
            state={"headers": dict(request.headers)},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
            handler=self.handler,
            source=partial(RequestSource.of_http, request),
            agents=self.agents,
            base_url=lambda: str(request.base_url),
            path=self.path,
        )

    def endpoint(
        self,
        respond: Endpoint,
        max_bytes: int,
        format_error: Format,
        *,
        may_be_empty: bool = False,
        echoes_extensions: bool = True,
    ) -> Endpoint:
        """Return the endpoint of a route at this address. The endpoint reads the body, calls `respond`, and counts a
        request that fails before it reaches an operation.

        Args:
            respond: Function that returns the response to a request, whose call is `call_of(request)`.
            max_bytes: Maximum size of a body.
            format_error: Function that returns the response for an error of the body, or for a limit.
            may_be_empty: True if the route accepts an empty body.
            echoes_extensions: True if the response lists the active extensions in the header ``A2A-Extensions``.
        """

        async def endpoint(request: Request) -> Response:
            call = request.scope[CALL] = self.call(request)
            requested_uris = set(call.requested_extensions)
            gate, agent, owner = self.handler.gate, self.handler.agent.name, call.user.user_name
            response: Response
            is_counted = False
            try:
                await receive_body(request, gate, agent, owner, max_bytes, may_be_empty=may_be_empty)
                response = await cancel_on_disconnect(respond, request)
                drop_body(request)
            except ClientDisconnect:  # while the body was being read
                response = Response(status_code=CLIENT_CLOSED_REQUEST)
            except Exception as e:
                is_counted = isinstance(e, LimitExceededError) and (e.data or {}).get("limit") == REQUESTS
                call.note_limit(e)
                response = format_error(to_a2a(e))
            if not call.has_begun and not is_counted:
                try:
                    await gate.count_unparsed_request(agent, owner)
                except LimitExceededError as e:
                    call.note_limit(e)
                    response = format_error(e)
            del request.scope[CALL]  # a long stream must not keep the call in memory
            response = with_retry_after(response, call.retry_after)
            active = active_extensions(call.handler.agent.card, requested_uris) if echoes_extensions else ""
            if active:
                response.headers[HTTP_EXTENSION_HEADER] = active
            return response

        return endpoint


def call_of(request: Request, version: str = PROTOCOL_VERSION_1_0) -> Call:
    """Return the call of a request that an `Address` serves, after a check of the version, which an agent can read in
    the headers of the call.

    Raises:
        VersionNotSupportedError: The request is for a different version than `version`.
    """
    requested = requested_version(request)
    require_version(requested, version)
    call: Call = request.scope[CALL]
    call.state["headers"][VERSION_HEADER.lower()] = requested or version
    return call


class LegacyCalls(ServerCallContextBuilder):
    """Builder that returns the call of a request of protocol 0.3 to the adapters of the SDK. No tenant selects the
    agent."""

    def build(self, request: Request) -> Call:
        """Return the call of `request`.

        Raises:
            VersionNotSupportedError: The request is for a different version.
        """
        call = call_of(request, PROTOCOL_VERSION_0_3)
        call.protocol, call.agents, call.event_ids = PROTOCOL_VERSION_0_3, None, []
        return call


def with_retry_after(response: Response, seconds: int | None) -> Response:
    """Return `response`, converted to status 429 with Retry-After and RetryInfo if a limit gives the `seconds` after
    which the client may retry."""
    if seconds is None or not isinstance(response, JSONResponse):
        return response
    return too_many_requests(json.loads(bytes(response.body)), seconds, response.media_type)


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


def rpc_body_error(error: A2AError) -> JSONResponse:
    """Return the JSON-RPC response for an error of a body, or for a limit, whose request id is unknown."""
    match error:
        case RequestTooLargeError():
            problem = JSONRPCError(code=-32600, message=str(error), data=[rpc_error_info("REQUEST_TOO_LARGE")])
        case InvalidRequestError():
            problem = JSONParseError(message=str(error), data=[rpc_error_info("INVALID_JSON")])
        case _:
            return rpc_error(error)
    return rpc_error(problem)


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
                await require_json(request, SMALL)
                self.body = self.render(self._envelope | {"id": rpc_id(await request.json())})
                self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def rpc_error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}


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
