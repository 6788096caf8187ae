"""Protocol 0.3, by the SDK's own adapters; what they leave open is closed here.

They take for granted that a request can be turned into one of protocol 1.0: what can't (a part without content, a
history length that is no number) comes out of them as an internal error, or breaks a stream off.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.json_format import ParseError
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from ..clock import SYSTEM_CLOCK, Clock
from .event_json import one_line
from .extensions import Endpoint
from .faults import REACHED, FieldErrors, fields_text, rpc_status, to_a2a
from .leaving import Leaving
from .protocol_versions import asked_version, served_as
from .rest_errors import rest_error, rest_fault
from .retry_after import REFUSALS
from .sse import EventStream, frame
from .streams import VERSIONS

MAX_FIELDS = 10
"""More of a request's wrong fields are not named."""

PROTOCOL = "a2a_protocol"
"""Set in the call context of a client that speaks 0.3, to that version."""


class LegacyRpc(JSONRPC03Adapter):
    """JSON-RPC as 0.3 spoke it."""

    def __init__(
        self,
        handler: RequestHandler,
        context_builder: ServerCallContextBuilder,
        leaving: Leaving,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(handler, context_builder)
        self._leaving = leaving
        self._clock = clock
        self.handler = _Translating(self.handler, _in_legacy_terms)  # type: ignore[assignment]

    async def handle_request(  # type: ignore[override]  # streams are not sse-starlette's
        self, request_id: Any, method: str, body: dict[str, Any], request: Request
    ) -> Response:
        """The SDK's answer; a stream that was refused becomes that answer."""
        response = await super().handle_request(request_id, method, body, request)
        if not isinstance(response, EventSourceResponse):
            return response
        said: Any = response.body_iterator
        first = await anext(said, None)
        if first is not None and request.scope.get(REFUSALS):
            return JSONResponse(json.loads(first["data"]))
        return await EventStream.begun(_frames(first, said, request), self._leaving, self._clock)

    def _generate_error_response(self, request_id: Any, error: Any) -> JSONResponse:
        status = 200
        if isinstance(error, A2AError):
            status = rpc_status(build_error_response(request_id, error))
            error = _in_legacy_terms(error)
        elif isinstance(error, JSONRPCError) and isinstance(error.data, str):
            # the text of what the SDK has just caught, which speaks of its models and of who checks them
            wrong = _wrong_fields(sys.exception())
            said = {} if wrong is None else {"message": fields_text(wrong["errors"])}
            error = error.model_copy(update={"data": wrong, **said})
        response: JSONResponse = super()._generate_error_response(request_id, error)
        response.status_code = status
        return response


def _wrong_fields(error: BaseException | None) -> dict[str, Any] | None:
    """What was wrong with a request, as data of an error of 0.3; None if `error` does not say it by field."""
    if not isinstance(error, ValidationError):
        return None
    found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FIELDS]
    return {"errors": [{"field": ".".join(map(str, one["loc"])), "message": one["msg"]} for one in found]}


def _in_legacy_terms(error: A2AError) -> A2AError:
    """`error` as 0.3 can say it: no typed details, but the fields in its data; and a code that was known then, as what
    it doesn't know goes out as an internal error."""
    if isinstance(error, VersionNotSupportedError | ExtensionSupportRequiredError):
        return UnsupportedOperationError(error.message, error.data)
    if isinstance(error.data, FieldErrors):
        return type(error)(error.message, {"errors": error.data["errors"]})
    return error


def legacy_rest_routes(
    handler: RequestHandler, context_builder: ServerCallContextBuilder, leaving: Leaving, clock: Clock = SYSTEM_CLOCK
) -> list[Route]:
    """HTTP+JSON as 0.3 spoke it: below ``/v1``."""
    adapter = REST03Adapter(handler, context_builder)
    adapter.handler = _Translating(adapter.handler)  # type: ignore[assignment]

    def written(endpoint: Endpoint) -> Endpoint:
        async def answered(request: Request) -> Response:
            response = await endpoint(request)
            if not isinstance(response, EventSourceResponse):
                return response
            said: Any = response.body_iterator
            try:  # an error is answered as one; the SDK does so for protocol 1.0
                first = await anext(said, None)
            except Exception as e:
                return rest_error(to_a2a(e))
            return await EventStream.begun(_frames(first, said, request), leaving, clock)

        return answered

    return [
        LegacyRoute(path, written(endpoint), methods=[method]) for (path, method), endpoint in adapter.routes().items()
    ]


class LegacyRoute(Route):
    """A route of 0.3 below ``/v1``. A request that names another version means the tenant `v1` there."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return how far `scope` matches."""
        if scope["type"] != "http" or served_as(asked_version(HTTPConnection(scope))) != PROTOCOL_VERSION_0_3:
            return Match.NONE, {}
        return super().matches(scope)


async def _frames(first: Any, said: Any, request: Request) -> AsyncGenerator[str, None]:
    """What the SDK's adapters stream, as an `EventStream` writes it, each with the version that was left for it."""
    versions: list[int | None] = request.scope.get(VERSIONS, [])

    def written(one: Any) -> str:
        what = one if isinstance(one, dict) else {"data": one}
        return frame(one_line(what["data"]), versions.pop(0) if versions else None, what.get("event"))

    async with aclosing(said):
        if first is not None:
            yield written(first)
        try:
            async for one in said:
                yield written(one)
        except Exception as e:
            yield frame(rest_fault(e), event="error")


class _Translating:
    """A handler of the SDK's for 0.3 that raises nothing but protocol errors."""

    def __init__(self, inner: Any, put: Callable[[A2AError], A2AError] = lambda error: error) -> None:
        self._inner = inner
        self._put = put

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        streams = inspect.isasyncgenfunction(inspect.unwrap(method))
        return self._stream(method) if streams else self._unary(method)

    def _unary(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def translated(request: Any, context: ServerCallContext) -> Any:
            context.state[PROTOCOL] = "0.3"
            try:
                return await method(request, context)
            except Exception as e:
                raise self._put(translation(e, context)) from None

        return translated

    def _stream(self, method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
        @functools.wraps(method)
        async def translated(request: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
            context.state[PROTOCOL] = "0.3"
            try:
                # the wrapper of a method raises too, before there is anything to iterate
                async for event in method(request, context):
                    yield event
            except Exception as e:
                raise self._put(translation(e, context)) from None

        return translated


def translation(error: Exception, context: ServerCallContext | None) -> A2AError:
    """The protocol's error for `error`; `context` is None for a request that no call could be made of."""
    if isinstance(error, A2AError) or (context is not None and context.state.get(REACHED)):
        return to_a2a(error)
    if isinstance(error, ParseError):
        return InvalidRequestError(str(error))
    return InvalidParamsError("The request can't be read: a field is missing or has a value of the wrong kind")
