"""HTTP+JSON binding of protocol 1.0 at the SDK's paths. Parameters are parsed strictly, and the tenant is read from the
path, the query or the body.

Source: A2A specification 11; the HTTP rules of ``a2a.proto``.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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
from google.protobuf.message import Message as Proto
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...features.operations import OPERATIONS as FEATURE_OPERATIONS
from ..call import Call
from ..cards import cached_card
from ..gate import SMALL, process
from ..handler import OPERATIONS
from ..pipeline import Operation, perform, stream
from ..protocol_errors import to_a2a
from .endpoints import Address, Endpoint, call_of, rest_error, rest_fault
from .json_results import write_result
from .request_parser import one_tenant, parse_json, parse_query
from .sse import EventStream, frames_of, write_page

JSON = "application/json"
"""Media type of the responses of operations that are not part of A2A."""


class RestOperation(NamedTuple):
    """HTTP binding of an operation.

    Attributes:
        verbs: HTTP methods.
        path: Path template.
        kind: Type of the request.
        operation: The operation.
        status: HTTP status of a successful response.
        media_type: Media type of the response.
        has_body: True if the body is not a message of A2A, and is passed on as `Call.body`.
    """

    verbs: tuple[str, ...]
    path: str
    kind: type[Proto]
    operation: Operation
    status: int = 200
    media_type: str = A2A_JSON_MEDIA_TYPE
    has_body: bool = False


def rest_routes(address: Address, max_bytes: int, prefix: str = "") -> list[Route]:
    """Return the routes of all operations under the path `prefix`, which may contain the parameter ``{tenant}``."""
    return [
        Route(
            prefix + operation.path,
            address.endpoint(_endpoint(operation), max_bytes, rest_error, may_be_empty=True),
            methods=list(operation.verbs),
        )
        for operation in REST_OPERATIONS
    ]


def _endpoint(operation: RestOperation) -> Endpoint:
    @functools.wraps(operation.operation.perform)
    async def endpoint(request: Request) -> Response:
        try:
            return await _respond(operation, request)
        except Exception as e:  # the SDK's decorator would keep the error, and with it the request, in a cycle
            return rest_error(to_a2a(e))

    name = f"{__name__}.{operation.operation.name}"
    traced_endpoint: Endpoint = trace_function(span_name=name, kind=SpanKind.SERVER)(endpoint)
    return traced_endpoint


async def _respond(operation: RestOperation, request: Request) -> Response:
    call = call_of(request)
    params = await _params(request, operation.kind, call)
    if operation.operation.is_stream:
        return await _stream(operation.operation, params, call, request)
    if operation.has_body:
        call.body = await request.json() if await request.body() else {}

    async def write(result: Any) -> Response:
        content = b"{}" if result is None else await write_result(result, params, call.heavy_work())
        return Response(content, operation.status, media_type=operation.media_type)

    response = await perform(operation.operation, params, call, write)
    return cached_card(response, request) if operation.kind is GetExtendedAgentCardRequest else response


async def _stream(operation: Operation, params: Any, call: Call, request: Request) -> Response:
    """Return the response of an operation that streams.

    A browser's EventSource sends GET, and reconnects whenever a stream ends, until it receives status 204.

    Source: HTML standard, section 9.2.
    """
    shutdown, clock = call.handler.shutdown, call.handler.clock
    write = functools.partial(write_page, work=call.heavy_work())
    frames = frames_of(stream(operation, params, call, write), rest_fault)
    response = await EventStream.start(frames, shutdown, clock)
    return Response(status_code=204) if request.method == "GET" and response.is_empty else response


async def _params(request: Request, kind: type[Proto], call: Call) -> Any:
    """Return the request message of an operation. Store its tenant and further parameters of the path in `call`."""
    params: Any
    if request.method == "POST":
        body = await request.body()
        fields = await request.json() if body else {}
        params = await process(call.heavy_work(), len(body) > SMALL, parse_json, fields, kind)
    else:
        params = parse_query(request.query_params, kind)
    for name, value in request.path_params.items():
        if name not in kind.DESCRIPTOR.fields_by_name:
            call.path_parameters[name] = value
        elif name != "tenant":
            setattr(params, name, value)
    call.tenant = one_tenant(
        request.path_params.get("tenant", ""), request.query_params.get("tenant", ""), params.tenant
    )
    return params


REST_OPERATIONS = (
    # Starlette tries routes in this order. The most frequent operations come first, and SubscribeToTask comes before
    # GetTask, whose path also matches the path of a subscription.
    RestOperation(("POST",), "/message:send", SendMessageRequest, OPERATIONS["SendMessage"]),
    RestOperation(("POST",), "/message:stream", SendMessageRequest, OPERATIONS["SendStreamingMessage"]),
    RestOperation(("GET", "POST"), "/tasks/{id}:subscribe", SubscribeToTaskRequest, OPERATIONS["SubscribeToTask"]),
    RestOperation(("POST",), "/tasks/{id}:cancel", CancelTaskRequest, OPERATIONS["CancelTask"]),
    RestOperation(  # not part of the specification
        ("POST",), "/tasks/{id}:signal", SubscribeToTaskRequest, OPERATIONS["SendSignal"], 202, JSON, has_body=True
    ),
    RestOperation(("GET",), "/tasks/{id}", GetTaskRequest, OPERATIONS["GetTask"]),
    RestOperation(("GET",), "/tasks", ListTasksRequest, OPERATIONS["ListTasks"]),
    RestOperation(("GET",), "/extendedAgentCard", GetExtendedAgentCardRequest, OPERATIONS["GetExtendedAgentCard"]),
    *(  # some are not part of the specification
        RestOperation(
            (feature.method,),
            feature.path,
            feature.request,
            OPERATIONS[feature.name],
            feature.status,
            JSON if feature.response else A2A_JSON_MEDIA_TYPE,
        )
        for feature in FEATURE_OPERATIONS
    ),
)
