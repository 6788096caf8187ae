"""HTTP+JSON binding of protocol 1.0 at the SDK's paths. Parameters are parsed strictly, and the tenant is read from the
path, the query or the body.

Source: A2A specification 11; the HTTP rules of ``a2a.proto``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.telemetry import SpanKind, trace_function
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...features.feature import GatewayOperation
from ...features.operations import OPERATIONS as FEATURE_OPERATIONS
from ..cards import cached_card
from ..handler import GatewayHandler
from ..middleware.bodies import parse_soon
from ..middleware.service_parameters import Endpoint
from ..operations.limits import meter_of
from ..operations.validation import PATH_PARAMETERS, SIGNAL
from ..protocol_errors import to_a2a
from .endpoints import rest_error, rest_fault
from .json_results import event_json_in_pieces, event_line, json_response, message_json, page_json, task_json
from .request_parser import one_tenant, parse_json, parse_query
from .sse import EventStream, frames_of


class RestOperation(NamedTuple):
    """HTTP method and path of an operation, its request type, and the function that serves it."""

    verbs: tuple[str, ...]
    path: str
    kind: type[Proto]
    answer: Callable[[GatewayHandler, Any, ServerCallContext, Request], Awaitable[Response]]


def rest_routes(handler: GatewayHandler, context_builder: ServerCallContextBuilder, prefix: str = "") -> list[Route]:
    """Return the routes of all operations under the path `prefix`, which may contain the parameter ``{tenant}``."""
    return [
        Route(prefix + operation.path, _endpoint(operation, handler, context_builder), methods=list(operation.verbs))
        for operation in OPERATIONS
    ]


def _endpoint(operation: RestOperation, handler: GatewayHandler, context_builder: ServerCallContextBuilder) -> Endpoint:
    @functools.wraps(operation.answer)
    async def endpoint(request: Request) -> Response:
        try:
            context = context_builder.build(request)
            params = await _params(request, operation.kind, context)
            return await operation.answer(handler, params, context, request)
        except Exception as e:
            return rest_error(to_a2a(e))

    name = f"{__name__}.{operation.answer.__name__}"
    traced_endpoint: Endpoint = trace_function(span_name=name, kind=SpanKind.SERVER)(endpoint)
    return traced_endpoint


async def _params(request: Request, kind: type[Proto], context: ServerCallContext) -> Any:
    """Return the request message of an operation. Store its tenant and further parameters of the path in `context`."""
    params: Any
    context.state[PATH_PARAMETERS] = {}
    if request.method == "POST":
        body = await request.body()
        params = await parse_soon(len(body), parse_json, await request.json() if body else {}, kind)
    else:
        params = parse_query(request.query_params, kind)
    for name, value in request.path_params.items():
        if name not in kind.DESCRIPTOR.fields_by_name:
            context.state[PATH_PARAMETERS][name] = value
        elif name != "tenant":
            setattr(params, name, value)
    context.tenant = one_tenant(
        request.path_params.get("tenant", ""), request.query_params.get("tenant", ""), params.tenant
    )
    return params


def _response(text: str) -> Response:
    return Response(text, media_type=A2A_JSON_MEDIA_TYPE)


def _pieces(pieces: Sequence[bytes]) -> Response:
    return json_response(pieces, A2A_JSON_MEDIA_TYPE)


async def send_message(
    handler: GatewayHandler, params: SendMessageRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve SendMessage."""
    return _pieces(await event_json_in_pieces(await handler.on_message_send(params, context), meter_of(context)))


async def send_streaming_message(
    handler: GatewayHandler, params: SendMessageRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve SendStreamingMessage."""
    frames = frames_of(
        handler.message_pages(params, context), functools.partial(event_line, meter=meter_of(context)), rest_fault
    )
    return await EventStream.start(frames, handler.shutdown, handler.clock)


async def subscribe_to_task(
    handler: GatewayHandler, params: SubscribeToTaskRequest, context: ServerCallContext, request: Request
) -> Response:
    """Serve SubscribeToTask.

    A browser's EventSource sends GET, and reconnects whenever a stream ends, until it receives status 204.

    Source: HTML standard, section 9.2.
    """
    frames = frames_of(
        handler.subscription_pages(params, context), functools.partial(event_line, meter=meter_of(context)), rest_fault
    )
    stream = await EventStream.start(frames, handler.shutdown, handler.clock)
    return Response(status_code=204) if request.method == "GET" and stream.is_empty else stream


async def get_task(handler: GatewayHandler, params: GetTaskRequest, context: ServerCallContext, _: Request) -> Response:
    """Serve GetTask."""
    return _pieces(await task_json(await handler.on_get_task(params, context), meter_of(context)))


async def list_tasks(
    handler: GatewayHandler, params: ListTasksRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve ListTasks."""
    return _pieces(
        await page_json(await handler.on_list_tasks(params, context), params.include_artifacts, meter_of(context))
    )


async def cancel_task(
    handler: GatewayHandler, params: CancelTaskRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve CancelTask."""
    return _pieces(await task_json(await handler.on_cancel_task(params, context), meter_of(context)))


async def send_signal(
    handler: GatewayHandler, params: SubscribeToTaskRequest, context: ServerCallContext, request: Request
) -> Response:
    """Send a signal to a task."""
    context.state[SIGNAL] = await request.json() if await request.body() else {}
    return JSONResponse(await handler.on_send_signal(params, context), status_code=202)


async def get_extended_card(
    handler: GatewayHandler, params: GetExtendedAgentCardRequest, context: ServerCallContext, request: Request
) -> Response:
    """Serve GetExtendedAgentCard."""
    card = await handler.on_get_extended_agent_card(params, context)
    return cached_card(_response(json.dumps(MessageToDict(card))), request)


def rest_operation(operation: GatewayOperation) -> RestOperation:
    """Return the REST operation of an operation that belongs to a feature."""

    async def answer(handler: GatewayHandler, params: Any, context: ServerCallContext, _: Request) -> Response:
        result = await handler.perform(operation.name, params, context)
        if isinstance(result, dict):
            return JSONResponse(result, status_code=operation.status)
        return _response("{}" if result is None else message_json(result))

    answer.__name__, answer.__doc__ = operation.perform.__name__, operation.perform.__doc__
    return RestOperation((operation.method,), operation.path, operation.request, answer)


OPERATIONS = (
    # Starlette tries routes in this order. The most frequent operations come first, and SubscribeToTask comes before
    # GetTask, whose path also matches the path of a subscription.
    RestOperation(("POST",), "/message:send", SendMessageRequest, send_message),
    RestOperation(("POST",), "/message:stream", SendMessageRequest, send_streaming_message),
    RestOperation(("GET", "POST"), "/tasks/{id}:subscribe", SubscribeToTaskRequest, subscribe_to_task),
    RestOperation(("POST",), "/tasks/{id}:cancel", CancelTaskRequest, cancel_task),
    RestOperation(("POST",), "/tasks/{id}:signal", SubscribeToTaskRequest, send_signal),
    RestOperation(("GET",), "/tasks/{id}", GetTaskRequest, get_task),
    RestOperation(("GET",), "/tasks", ListTasksRequest, list_tasks),
    RestOperation(("GET",), "/extendedAgentCard", GetExtendedAgentCardRequest, get_extended_card),
    # not part of the specification
    *map(rest_operation, FEATURE_OPERATIONS),
)
