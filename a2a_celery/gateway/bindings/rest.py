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
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.telemetry import SpanKind, trace_function
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...features.feature import ClientOperation
from ...features.gateway import CLIENT_OPERATIONS
from ..cards import cached_card
from ..handler import GatewayHandler
from ..middleware.bodies import parse_soon
from ..middleware.operation import operation
from ..middleware.service_parameters import Endpoint
from ..operations.limits import meter_of
from ..operations.push_configs import REPLAYED
from ..operations.validation import SIGNAL
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
    """Return the request message of an operation. Store its tenant and, for a replay, the event id in `context`."""
    params: Any
    if request.method == "POST":
        body = await request.body()
        params = await parse_soon(len(body), parse_json, await request.json() if body else {}, kind)
    else:
        params = parse_query(request.query_params, kind)
    for name, value in request.path_params.items():
        if name == "event":
            context.state[REPLAYED] = value
        elif name != "tenant":
            setattr(params, name, value)
    context.tenant = one_tenant(
        request.path_params.get("tenant", ""), request.query_params.get("tenant", ""), params.tenant
    )
    return params


def _operation_of(feature: ClientOperation) -> RestOperation:
    """Return the operation of a feature."""

    @operation(feature.name)
    async def perform(handler: GatewayHandler, params: Any, context: ServerCallContext) -> dict[str, Any]:
        return await handler.perform(feature, params, context)

    @functools.wraps(feature.respond)
    async def answer(handler: GatewayHandler, params: Any, context: ServerCallContext, _: Request) -> Response:
        return JSONResponse(await perform(handler, params, context))

    return RestOperation((feature.method,), feature.path, feature.kind, answer)


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


async def create_push_config(
    handler: GatewayHandler, params: TaskPushNotificationConfig, context: ServerCallContext, _: Request
) -> Response:
    """Serve CreateTaskPushNotificationConfig."""
    return _response(message_json(await handler.on_create_task_push_notification_config(params, context)))


async def get_push_config(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve GetTaskPushNotificationConfig."""
    return _response(message_json(await handler.on_get_task_push_notification_config(params, context)))


async def list_push_configs(
    handler: GatewayHandler, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve ListTaskPushNotificationConfigs."""
    return _response(message_json(await handler.on_list_task_push_notification_configs(params, context)))


async def delete_push_config(
    handler: GatewayHandler, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext, _: Request
) -> Response:
    """Serve DeleteTaskPushNotificationConfig."""
    await handler.on_delete_task_push_notification_config(params, context)
    return _response("{}")


async def get_extended_card(
    handler: GatewayHandler, params: GetExtendedAgentCardRequest, context: ServerCallContext, request: Request
) -> Response:
    """Serve GetExtendedAgentCard."""
    card = await handler.on_get_extended_agent_card(params, context)
    return cached_card(_response(json.dumps(MessageToDict(card))), request)


async def get_webhook_deliveries(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext, _: Request
) -> Response:
    """Return the newest deliveries of a webhook."""
    return JSONResponse(await handler.on_get_webhook_deliveries(params, context))


async def replay_webhook_deliveries(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext, _: Request
) -> Response:
    """Queue another delivery of one event, or of all failed events."""
    return JSONResponse(await handler.on_replay_webhook_deliveries(params, context), status_code=202)


async def ping_webhook(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext, _: Request
) -> Response:
    """Queue a test ping, which a watcher posts."""
    return JSONResponse(await handler.on_ping_webhook(params, context), status_code=202)


_CONFIGS = "/tasks/{task_id}/pushNotificationConfigs"
_CONFIG = _CONFIGS + "/{id:path}"
"""Path of a push notification config. The id may contain slashes, which a client sends as ``%2F``."""

_WEBHOOK = "/webhooks/{task_id}/{id:path}"
"""Path prefix of the gateway's webhook operations, which are not part of the specification."""

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
    RestOperation(("GET",), _CONFIG, GetTaskPushNotificationConfigRequest, get_push_config),
    RestOperation(("DELETE",), _CONFIG, DeleteTaskPushNotificationConfigRequest, delete_push_config),
    RestOperation(("POST",), _CONFIGS, TaskPushNotificationConfig, create_push_config),
    RestOperation(("GET",), _CONFIGS, ListTaskPushNotificationConfigsRequest, list_push_configs),
    RestOperation(("GET",), "/extendedAgentCard", GetExtendedAgentCardRequest, get_extended_card),
    # not part of the specification, like the paths of webhooks below
    *map(_operation_of, CLIENT_OPERATIONS),
    RestOperation(("GET",), f"{_WEBHOOK}/deliveries", GetTaskPushNotificationConfigRequest, get_webhook_deliveries),
    RestOperation(
        ("POST",), f"{_WEBHOOK}/deliveries:replay", GetTaskPushNotificationConfigRequest, replay_webhook_deliveries
    ),
    RestOperation(
        ("POST",),
        f"{_WEBHOOK}/deliveries/{{event}}:replay",
        GetTaskPushNotificationConfigRequest,
        replay_webhook_deliveries,
    ),
    RestOperation(("POST",), f"{_WEBHOOK}:ping", GetTaskPushNotificationConfigRequest, ping_webhook),
)
