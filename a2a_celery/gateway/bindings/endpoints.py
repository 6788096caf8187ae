"""Wrappers around the HTTP endpoints of all bindings: body checks, disconnects, limits and Retry-After.

The SDK reads a body of any size and media type, never counts a request that it cannot parse, and answers each refusal
of a limit with the status of its error class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidRequestError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...integrations.starlette import drop_body
from ..handler import GatewayHandler
from ..middleware.bodies import CHARGE, read_bounded, require_json
from ..middleware.disconnect import CLIENT_CLOSED_REQUEST, cancel_on_disconnect
from ..middleware.extensions import Endpoint
from ..middleware.retry_after import LIMIT_ERRORS, record_limit_error, with_retry_after
from ..protocol_errors import REACHED, LimitExceededError, RequestTooLargeError
from .call_context import CALL, CALLERS
from .errors import rest_error, rpc_envelope_error, rpc_error, rpc_error_info

SMALL_BODY = 1 << 12
"""Bytes of a body that is cheap to read and to reject."""


def guard_rpc(endpoint: Endpoint, max_bytes: int) -> Endpoint:
    """Return `endpoint`, a JSON-RPC one, with checks of the request's body. Their errors are those of JSON-RPC."""

    async def guarded(request: Request) -> Response:
        try:
            await require_json(request, max_bytes)
        except RequestTooLargeError as e:
            return rpc_envelope_error(
                JSONRPCError(code=-32600, message=str(e), data=[rpc_error_info("REQUEST_TOO_LARGE")])
            )
        except InvalidRequestError as e:
            return rpc_envelope_error(JSONParseError(message=str(e), data=[rpc_error_info("INVALID_JSON")]))
        except ContentTypeNotSupportedError as e:
            return rpc_error(e)
        except ClientDisconnect:  # in the midst of its body
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return await _answered(endpoint, request)

    return guarded


def guard_rest(
    routes: Sequence[Route], max_bytes: int, around: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint
) -> list[Route]:
    """Return HTTP+JSON `routes` with checks of the request's body, each wrapped by `around`. Errors are
    google.rpc.Status."""

    def guard(endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                if request.method in ("POST", "PUT", "PATCH"):
                    await require_json(request, max_bytes, may_be_empty=True)
                else:  # nobody needs it, but the SDK reads it before it streams
                    await read_bounded(request, max_bytes)
            except (RequestTooLargeError, ContentTypeNotSupportedError, InvalidRequestError) as e:
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


def count_unparsed(endpoint: Endpoint, handler: GatewayHandler, say: Callable[[A2AError], JSONResponse]) -> Endpoint:
    """Return `endpoint` with a token taken also for requests that reach no operation of `handler`.

    A caller without a token gets an error before a large body is read. `say` formats the error.
    """
    limits, agent = handler.limits, handler.agent.name
    if not limits.counts_requests:
        return endpoint

    async def counted(request: Request) -> Response:
        owner = CALLERS.build_user(request).user_name
        request.scope[CHARGE] = partial(limits.charge_body, agent, owner)
        try:
            if _may_be_large(request):
                await limits.require_token(agent, owner)
            response = await endpoint(request)
            context: ServerCallContext | None = request.scope.get(CALL)
            if context is None or REACHED not in context.state:
                await limits.count_unparsed_request(agent, owner)
        except LimitExceededError as e:
            record_limit_error(request.scope.setdefault(LIMIT_ERRORS, []), e)
            response = with_retry_after(say(e), request)
        return response

    return counted


def _may_be_large(request: Request) -> bool:
    declared = request.headers.get("content-length", "0" if request.method == "GET" else "")
    return not declared.isdigit() or int(declared) > SMALL_BODY


async def _answered(endpoint: Endpoint, request: Request) -> Response:
    response = await cancel_on_disconnect(endpoint, request)
    drop_body(request)
    return with_retry_after(response, request)
