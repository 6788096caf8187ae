"""Protocol 0.3 through the SDK's adapters, with stricter validation and error mapping.

The adapters assume that every request can be converted to protocol 1.0. This module returns a protocol error for a
request that cannot be converted (a part without content, a history length that is not a number). Otherwise, such a
request would cause an internal error or break a stream.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import a2a.server.routes.jsonrpc_dispatcher  # noqa: F401 - before the adapters, which import it circularly
from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions, jsonrpc_adapter
from a2a.compat.v0_3 import proto_utils as legacy_proto
from a2a.compat.v0_3.context_builders import V03ServerCallContextBuilder
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.compat.v0_3.request_handler import RequestHandler03
from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.compat.v0_3.rest_handler import REST03Handler
from a2a.compat.v0_3.types import (
    CancelTaskRequest,
    DataPart,
    DeleteTaskPushNotificationConfigParams,
    DeleteTaskPushNotificationConfigRequest,
    FilePart,
    FileWithBytes,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    Message,
    MessageSendParams,
    SendMessageRequest,
    SendStreamingMessageSuccessResponse,
    SetTaskPushNotificationConfigRequest,
    Task,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskResubscriptionRequest,
    TaskStatusUpdateEvent,
)
from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import GetTaskRequest as CoreGetTaskRequest
from a2a.types import ListTaskPushNotificationConfigsRequest
from a2a.types import Task as CoreTask
from a2a.types import TaskStatusUpdateEvent as CoreStatusUpdate
from a2a.utils import proto_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.error_handlers import rest_error_handler
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from a2a.utils.version_validator import validate_version
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from ...clock import SYSTEM_CLOCK, Clock
from ...integrations.a2a_sdk import AdaptedErrors, keep_legacy_codes
from ...lifecycle import Event, EventId
from ...lifecycle.events import time_text
from ...operations.errors import FieldErrors, fields_text, invalid
from ..call import Call, requested_version, served_as
from ..gate import is_large, process
from ..protocol_errors import EXTRA_RPC_CODES, rpc_status, to_a2a
from ..shutdown import GatewayShutdown
from .endpoints import CALL, Address, Endpoint, LegacyCalls, RpcId, rest_error, rest_fault
from .json_results import one_line
from .request_parser import is_padded_base64, parse_json, require_exact
from .sdk_handler import Convert, SdkHandler
from .sse import EventStream, frame

INVALID_PARAMS = JSON_RPC_ERROR_CODE_MAP[InvalidParamsError]

keep_legacy_codes(jsonrpc_adapter, EXTRA_RPC_CODES.values())

MAX_FIELDS = 10
"""Maximum number of invalid fields in an error."""


class LegacyRpc(AdaptedErrors, JSONRPC03Adapter):
    """JSON-RPC adapter of protocol 0.3, with strict validation, mapped errors and streams as `EventStream`."""

    def __init__(
        self,
        handler: SdkHandler,
        context_builder: ServerCallContextBuilder,
        shutdown: GatewayShutdown,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(handler, context_builder)
        self._shutdown = shutdown
        self._clock = clock
        self.handler = _ErrorMapper(StrictLegacyHandler(handler), _in_legacy_terms)  # type: ignore[assignment]

    async def handle_request(  # type: ignore[override]  # streams are not sse-starlette's
        self, request_id: Any, method: str, body: dict[str, Any], request: Request
    ) -> Response:
        """Return the SDK's response, with a stream converted to an `EventStream`. The response to a stream request that
        exceeds a limit, or that the caller may not send, is a JSON response."""
        if not isinstance(request_id, str | int):
            body = body | {"id": _PLACEHOLDER}
        sdk_id = body["id"]
        response = await super().handle_request(sdk_id, method, body, request)
        is_complete = sdk_id is request_id and method != "tasks/pushNotificationConfig/delete"
        if not isinstance(response, EventSourceResponse):
            return response if is_complete else _complete(response, request_id)
        sdk_events: Any = response.body_iterator
        if not is_complete:
            sdk_events = _with_id(sdk_events, request_id)
        first = await anext(sdk_events, None)
        call: Call = request.scope[CALL]
        if first is not None and not call.event_ids:  # an error
            content = json.loads(first["data"])
            status = rpc_status(content)
            if status != 200 or call.retry_after is not None:
                return JSONResponse(content, status)
        return await EventStream.start(_frames(first, sdk_events, call.event_ids), self._shutdown, self._clock)

    def adapt_error(self, error: Any) -> tuple[Any, int]:
        """Return the error in the form of protocol 0.3, and the HTTP status of the response."""
        status = 200
        if isinstance(error, A2AError):
            status = rpc_status(build_error_response(None, error))
            error = _in_legacy_terms(error)
        elif isinstance(error, JSONRPCError) and isinstance(error.data, str):
            # The SDK has set the data to the text of a pydantic error, which describes the SDK's models.
            wrong = _wrong_fields(sys.exception())
            # The envelope has been checked, so the SDK's invalid request has invalid params.
            fields = {} if wrong is None else {"code": INVALID_PARAMS, "message": fields_text(wrong["errors"])}
            error = error.model_copy(update={"data": wrong, **fields})
        return error, status


_PLACEHOLDER = 0
"""Id in requests whose own id the SDK's models refuse: null, and numbers with a fraction."""


def _complete(response: JSONResponse, request_id: RpcId) -> JSONResponse:
    """Return `response` with `request_id` and a result. The SDK omits a result that is null, but JSON-RPC 2.0 requires
    a result (section 5)."""
    content = json.loads(bytes(response.body)) | {"id": request_id}
    result = {} if "error" in content else {"result": content.get("result")}
    return JSONResponse(content | result, status_code=response.status_code)


async def _with_id(sdk_events: Any, request_id: RpcId) -> AsyncGenerator[dict[str, str], None]:
    """Yield the events of a stream of the SDK's adapter with `request_id`."""
    async with aclosing(sdk_events):
        async for sdk_event in sdk_events:
            yield sdk_event | {"data": json.dumps(json.loads(sdk_event["data"]) | {"id": request_id})}


def _wrong_fields(error: BaseException | None) -> dict[str, Any] | None:
    """Return the invalid fields in `error` as error data for protocol 0.3, or None for any other error."""
    if not isinstance(error, ValidationError):
        return None
    details = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FIELDS]
    return {"errors": [{"field": ".".join(map(str, detail["loc"])), "message": detail["msg"]} for detail in details]}


def _in_legacy_terms(error: A2AError) -> A2AError:
    """Return `error` for a client of protocol 0.3, with field names instead of typed details and with a code that 0.3
    defines.

    The SDK would send an error with any other code as an internal error.
    """
    if isinstance(error, VersionNotSupportedError | ExtensionSupportRequiredError):
        return UnsupportedOperationError(error.message, error.data)
    if isinstance(error.data, FieldErrors):
        return type(error)(error.message, {"errors": error.data["errors"]})
    return error


def legacy_rest_routes(address: Address, max_bytes: int) -> list[Route]:
    """Return the HTTP+JSON routes of protocol 0.3 under ``/v1``."""
    handler, calls = SdkHandler(), LegacyCalls()
    adapter = REST03Adapter(handler, calls)
    legacy_handler = _ErrorMapper(LegacyRestHandler(handler))
    adapter.handler = legacy_handler  # type: ignore[assignment]

    @rest_error_handler
    async def delete_push_notification(request: Request) -> Response:
        call = V03ServerCallContextBuilder(calls).build(request)
        return JSONResponse(await legacy_handler.delete_push_notification(request, call))

    def write_events(endpoint: Endpoint) -> Endpoint:
        async def respond(request: Request) -> Response:
            response = await endpoint(request)
            if not isinstance(response, EventSourceResponse):
                return response
            sdk_events: Any = response.body_iterator
            # an error is raised and returned as an error response, as the SDK does for protocol 1.0
            first = await anext(sdk_events, None)
            frames = _frames(first, sdk_events, request.scope[CALL].event_ids)
            return await EventStream.start(frames, address.handler.shutdown, address.handler.clock)

        return address.endpoint(respond, max_bytes, rest_error, may_be_empty=True, echoes_extensions=False)

    # the SDK's adapter has no route for tasks/pushNotificationConfig/delete
    delete_route = "/v1/tasks/{id}/pushNotificationConfigs/{push_id}", "DELETE"
    routes = adapter.routes() | {delete_route: delete_push_notification}
    return [LegacyRoute(path, write_events(endpoint), methods=[method]) for (path, method), endpoint in routes.items()]


class LegacyRoute(Route):
    """Route of protocol 0.3 under ``/v1``. In a request for a different version, the path segment ``v1`` is a
    tenant."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return Starlette's match of `scope`, or no match for a request of a different protocol version."""
        if scope["type"] != "http" or served_as(requested_version(HTTPConnection(scope))) != PROTOCOL_VERSION_0_3:
            return Match.NONE, {}
        return super().matches(scope)


async def _frames(first: Any, sdk_events: Any, event_ids: list[EventId | None] | None) -> AsyncGenerator[str, None]:
    """Yield a frame of an `EventStream` for each event of the SDK's adapters, with its id in `event_ids`."""

    def sdk_frame(sdk_event: Any) -> str:
        fields = sdk_event if isinstance(sdk_event, dict) else {"data": sdk_event}
        return frame(one_line(fields["data"]), event_ids.pop(0) if event_ids else None, fields.get("event"))

    async with aclosing(sdk_events):
        if first is not None:
            yield sdk_frame(first)
        try:
            async for sdk_event in sdk_events:
                yield sdk_frame(sdk_event)
        except Exception as e:
            yield frame(rest_fault(e), event="error")


class StrictLegacyHandler(RequestHandler03):
    """Handler of protocol 0.3 that refuses invalid base64, in which the SDK would skip the invalid characters.

    Large results are converted in a thread.
    """

    def __init__(self, handler: SdkHandler) -> None:
        super().__init__(handler)
        self._handler = handler

    async def on_message_send(self, request: SendMessageRequest, call: Any) -> Task | Message:
        """Send a message.

        Raises:
            InvalidParamsError: A file is not base64, or a value has no exact form.
        """
        _require_valid(request.params)
        params = conversions.to_core_send_message_request(request)
        result: Task | Message = await self._handler.perform("SendMessage", params, call, _result_of(call))
        return result

    async def on_get_task(self, request: GetTaskRequest, call: Any) -> Task:
        """Return the current task."""
        task: Task = await self._handler.perform("GetTask", _task_request(request), call, _result_of(call))
        return task

    async def on_cancel_task(self, request: CancelTaskRequest, call: Any) -> Task:
        """Cancel a task."""
        params = conversions.to_core_cancel_task_request(request)
        task: Task = await self._handler.perform("CancelTask", params, call, _result_of(call))
        return task

    async def on_message_send_stream(
        self, request: SendMessageRequest, call: Any
    ) -> AsyncGenerator[SendStreamingMessageSuccessResponse, None]:
        """Send a message and stream its turn.

        Raises:
            InvalidParamsError: A file is not base64, or a value has no exact form.
        """
        _require_valid(request.params)
        params, convert = conversions.to_core_send_message_request(request), _response_of(call, request.id)
        async for event in self._handler.stream("SendStreamingMessage", params, call, convert):
            yield event

    async def on_subscribe_to_task(
        self, request: TaskResubscriptionRequest, call: Any
    ) -> AsyncGenerator[SendStreamingMessageSuccessResponse, None]:
        """Stream a task and its updates."""
        params, convert = conversions.to_core_subscribe_to_task_request(request), _response_of(call, request.id)
        async for event in self._handler.stream("SubscribeToTask", params, call, convert):
            yield event

    async def on_get_task_push_notification_config(
        self, request: GetTaskPushNotificationConfigRequest, call: Any
    ) -> TaskPushNotificationConfig:
        """Return a config. A request that names only the task gets the first config of the task.

        Raises:
            TaskNotFoundError: There is no such config.
        """
        task_id = request.params.id
        if getattr(request.params, "push_notification_config_id", None):
            return await super().on_get_task_push_notification_config(request, call)
        page_request = ListTaskPushNotificationConfigsRequest(task_id=task_id, page_size=1)
        page = await self.request_handler.on_list_task_push_notification_configs(page_request, call)
        if not page.configs:
            raise TaskNotFoundError("No such push notification config", data={"taskId": task_id})
        return conversions.to_compat_task_push_notification_config(page.configs[0])


class LegacyRestHandler(REST03Handler):
    """Handler of HTTP+JSON requests of protocol 0.3 that refuses invalid base64. Large results are converted in a
    thread."""

    def __init__(self, handler: SdkHandler) -> None:
        super().__init__(handler)
        self.handler03 = StrictLegacyHandler(handler)
        self._handler = handler

    @validate_version(PROTOCOL_VERSION_0_3)
    async def on_message_send(self, request: Request, call: Any) -> dict[str, Any]:
        """Send a message."""
        params = await _message_request(request)
        json_fields: dict[str, Any] = await self._handler.perform("SendMessage", params, call, _json_of(call))
        return json_fields

    @validate_version(PROTOCOL_VERSION_0_3)
    async def on_message_send_stream(self, request: Request, call: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Send a message and stream its turn."""
        params = await _message_request(request)
        async for event in self._handler.stream("SendStreamingMessage", params, call, _json_of(call)):
            yield event

    @validate_version(PROTOCOL_VERSION_0_3)
    async def on_get_task(self, request: Request, call: Any) -> dict[str, Any]:
        """Return the current task as a JSON object."""
        length = request.query_params.get("historyLength")
        query = TaskQueryParams(id=request.path_params["id"], history_length=int(length) if length else None)
        params = _task_request(GetTaskRequest(id="", params=query))
        json_fields: dict[str, Any] = await self._handler.perform("GetTask", params, call, _json_of(call))
        task: dict[str, Any] = json_fields["task"]
        return task

    @validate_version(PROTOCOL_VERSION_0_3)
    async def on_cancel_task(self, request: Request, call: Any) -> dict[str, Any]:
        """Cancel a task."""
        cancel_request = CancelTaskRequest(id="", params=TaskIdParams(id=request.path_params["id"]))
        params = conversions.to_core_cancel_task_request(cancel_request)
        json_fields: dict[str, Any] = await self._handler.perform("CancelTask", params, call, _json_of(call))
        task: dict[str, Any] = json_fields["task"]
        return task

    @validate_version(PROTOCOL_VERSION_0_3)
    async def on_subscribe_to_task(self, request: Request, call: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Stream a task and its updates."""
        resubscription = TaskResubscriptionRequest(id="", params=TaskIdParams(id=request.path_params["id"]))
        params = conversions.to_core_subscribe_to_task_request(resubscription)
        async for event in self._handler.stream("SubscribeToTask", params, call, _json_of(call)):
            yield event

    @validate_version(PROTOCOL_VERSION_0_3)
    async def set_push_notification(self, request: Request, call: Any) -> dict[str, Any]:
        """Create a config of the task in the path, and return the config as a JSON object.

        The SDK's method also requires the task in the body, as `parent`, which A2A 0.3 does not (section 7.5).
        """
        body = parse_json(await request.json(), a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest)
        body.parent = f"tasks/{request.path_params['id']}"
        hook = body.config.push_notification_config
        if hook.authentication == a2a_v0_3_pb2.AuthenticationInfo():  # A2A 1.0 requires a scheme, the proto of 0.3 none
            hook.ClearField("authentication")
        params = legacy_proto.FromProto.task_push_notification_config_request(body)
        config = await self.handler03.on_create_task_push_notification_config(
            SetTaskPushNotificationConfigRequest(id="", params=params), call
        )
        return MessageToDict(legacy_proto.ToProto.task_push_notification_config(config))

    @validate_version(PROTOCOL_VERSION_0_3)
    async def delete_push_notification(self, request: Request, call: Any) -> dict[str, Any]:
        """Delete a config and return an empty JSON object."""
        params = DeleteTaskPushNotificationConfigParams(
            id=request.path_params["id"], push_notification_config_id=request.path_params["push_id"]
        )
        delete_request = DeleteTaskPushNotificationConfigRequest(id="", params=params)
        await self.handler03.on_delete_task_push_notification_config(delete_request, call)
        return {}


def _task_request(request: GetTaskRequest) -> CoreGetTaskRequest:
    """Return the request of protocol 1.0. The SDK drops a history length of 0, because gRPC of 0.3 cannot distinguish 0
    from no length. In requests over gRPC, the length is None instead of 0."""
    core_request: CoreGetTaskRequest = conversions.to_core_get_task_request(request)
    if request.params.history_length == 0:
        core_request.history_length = 0
    return core_request


async def _message_request(request: Request) -> Any:
    """Return the message request in the body of `request`.

    Raises:
        InvalidParamsError: The body is not a message request, a file is not base64, or a value has no exact form.
    """
    message_request = parse_json(await request.json(), a2a_v0_3_pb2.SendMessageRequest)
    params = legacy_proto.FromProto.message_send_params(message_request)
    _require_valid(params)
    return conversions.to_core_send_message_request(SendMessageRequest(id="", params=params))


def _response_of(call: Call, request_id: Any, write: Callable[[Any], Any] = lambda response: response) -> Convert:
    """Return a function that converts an event to the response of protocol 0.3, and returns the result of `write` for
    the response. A large event is converted in a thread. Protocol 0.3 marks the status update that ends a stream as
    final."""

    async def convert(event: Event) -> Any:
        is_last = call.is_last
        return await process(call.heavy_work(), is_large(event), lambda: write(_response(event, request_id, is_last)))

    return convert


def _result_of(call: Call) -> Convert:
    """Return a function that converts an event to the result of a JSON-RPC response of protocol 0.3."""
    return _response_of(call, "", lambda response: response.result)


def _json_of(call: Call) -> Convert:
    """Return a function that converts an event to the JSON of a SendMessageResponse or StreamResponse of protocol
    0.3."""
    return _response_of(call, "", lambda response: MessageToDict(legacy_proto.ToProto.stream_response(response.result)))


def _response(event: Event, request_id: Any, is_last: bool) -> SendStreamingMessageSuccessResponse:
    response = conversions.to_compat_stream_response(proto_utils.to_stream_response(event), request_id)
    result = response.result
    if is_last and isinstance(result, TaskStatusUpdateEvent):
        result.final = True
    if isinstance(event, CoreTask | CoreStatusUpdate) and isinstance(result, Task | TaskStatusUpdateEvent):
        result.status.timestamp = time_text(event.status.timestamp) if event.status.HasField("timestamp") else None
    return response


def _require_valid(params: MessageSendParams) -> None:
    """Check the files of a message, and the values that protobuf would change.

    Raises:
        InvalidParamsError: A file is not base64, or a value has no exact form; see `require_exact`.
    """
    message = params.message
    require_exact(params.metadata, "metadata")
    require_exact(message.metadata, "message.metadata")
    for number, part in enumerate(message.parts):
        if isinstance(part.root, DataPart):
            require_exact(part.root.data, f"message.parts[{number}].data")
        require_exact(part.root.metadata, f"message.parts[{number}].metadata")
        file = part.root.file if isinstance(part.root, FilePart) else None
        if isinstance(file, FileWithBytes) and not is_padded_base64(file.bytes):
            raise invalid(f"message.parts[{number}].file.bytes", "Base64 with padding.")


class _ErrorMapper:
    """Proxy of an SDK handler for protocol 0.3 that raises only protocol errors."""

    def __init__(self, inner: Any, translate: Callable[[A2AError], A2AError] = lambda error: error) -> None:
        self._inner = inner
        self._translate = translate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        streams = inspect.isasyncgenfunction(inspect.unwrap(method))
        return self._stream(method) if streams else self._unary(method)

    def _unary(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def call_method(request: Any, call: Call) -> Any:
            try:
                return await method(request, call)
            except Exception as e:
                raise self._translate(map_legacy_error(e, call)) from None

        return call_method

    def _stream(self, method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
        @functools.wraps(method)
        async def call_method(request: Any, call: Call) -> AsyncGenerator[Any, None]:
            try:
                # the method's wrapper may raise before there is an iterator
                async for event in method(request, call):
                    yield event
            except Exception as e:
                raise self._translate(map_legacy_error(e, call)) from None

        return call_method


def map_legacy_error(error: Exception, call: Call | None) -> A2AError:
    """Return the A2A error for `error`.

    Args:
        error: Error of a request.
        call: Call of the request, or None if the request failed before it had one.
    """
    if isinstance(error, A2AError) or (call is not None and call.has_begun):
        return to_a2a(error)
    return InvalidParamsError("The request is invalid: a field is missing or has a value of the wrong type")
