"""Error responses over each binding, and the codes that the specification requires."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc.aio
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
    a2a_pb2_grpc,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2

from tests.support.clients.bindings import V1, rest, rpc
from tests.support.processes.fleet import Gateway
from tests.support.waiting import LIMIT

CODES = {  # JSON-RPC code, HTTP status, gRPC status (A2A specification 5.4 and 9.5; the last reasons are extensions)
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400, "INVALID_ARGUMENT"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": (-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": (-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": (-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_PARAMS": (-32602, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": (-32600, 400, "INVALID_ARGUMENT"),
    "METHOD_NOT_FOUND": (-32601, 404, "NOT_FOUND"),
    "INVALID_AGENT_RESPONSE": (-32006, 500, "INTERNAL"),
    "INTERNAL_ERROR": (-32603, 500, "INTERNAL"),
    "SERVICE_UNAVAILABLE": (-32603, 503, "UNAVAILABLE"),
    "REQUEST_TOO_LARGE": (-32600, 413, "RESOURCE_EXHAUSTED"),
    "UNAUTHENTICATED": (-31401, 401, "UNAUTHENTICATED"),
    "PERMISSION_DENIED": (-31403, 403, "PERMISSION_DENIED"),
}

REQUESTS = {
    "SendMessage": (SendMessageRequest, "POST", "/message:send"),
    "SendStreamingMessage": (SendMessageRequest, "POST", "/message:stream"),
    "GetTask": (GetTaskRequest, "GET", "/tasks/{id}"),
    "ListTasks": (ListTasksRequest, "GET", "/tasks"),
    "CancelTask": (CancelTaskRequest, "POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": (SubscribeToTaskRequest, "POST", "/tasks/{id}:subscribe"),
    "GetExtendedAgentCard": (GetExtendedAgentCardRequest, "GET", "/extendedAgentCard"),
    "GetTaskPushNotificationConfig": (
        GetTaskPushNotificationConfigRequest,
        "GET",
        "/tasks/{taskId}/pushNotificationConfigs/{id}",
    ),
    "DeleteTaskPushNotificationConfig": (
        DeleteTaskPushNotificationConfigRequest,
        "DELETE",
        "/tasks/{taskId}/pushNotificationConfigs/{id}",
    ),
    "CreateTaskPushNotificationConfig": (
        TaskPushNotificationConfig,
        "POST",
        "/tasks/{taskId}/pushNotificationConfigs",
    ),
    "ListTaskPushNotificationConfigs": (
        ListTaskPushNotificationConfigsRequest,
        "GET",
        "/tasks/{taskId}/pushNotificationConfigs",
    ),
}
OUR_WORDS = ("Traceback", "a2a_celery", 'File "', "redis.", "Exception", "Error(", "asyncio")
"""Texts that no error response may contain."""


@dataclass
class Fault:
    """Error response.

    Attributes:
        status: Status in the binding: JSON-RPC code, HTTP status or name of the gRPC status.
        reason: Reason of the ErrorInfo.
        message: Text of the error.
        metadata: Metadata of the ErrorInfo.
        fields: Descriptions of the invalid fields by name.
    """

    status: int | str
    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)


async def fault(
    gateway: Gateway, binding: str, method: str, params: dict[str, Any], *, agent: str = "", **headers: str
) -> Fault:
    """Call `method` and return the error. Fail if the call succeeds, or if the error does not conform to the
    specification."""
    match binding:
        case "JSONRPC":
            error = from_rpc(rpc(gateway, method, params, agent=agent, **headers))
        case "HTTP+JSON":
            error = from_rest(_over_rest(gateway, method, params, agent, headers))
        case _:
            error = await _over_grpc(gateway, method, params, agent, headers)
    position = ("JSONRPC", "HTTP+JSON", "GRPC").index(binding)
    assert error.status == CODES[error.reason][position], error
    return error


def from_rpc(answer: dict[str, Any]) -> Fault:
    """Return the error of a JSON-RPC response."""
    error = answer["error"]
    return _typed_fault(error["code"], error["message"], error["data"])


def from_rest(answer: Any) -> Fault:
    """Return the error of an HTTP+JSON response."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["status"]
    return _typed_fault(error["code"], error["message"], error["details"])


def from_grpc(error: grpc.aio.AioRpcError) -> Fault:
    """Return the error of a gRPC call."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)  # type: ignore[arg-type]
            details = []
            for any_detail in status.details:
                for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest):
                    if any_detail.Is(kind.DESCRIPTOR):
                        detail = kind.FromString(any_detail.value)
                        details.append({"@type": any_detail.type_url, **MessageToDict(detail)})
            return _typed_fault(error.code().name, error.details() or "", details)
    raise AssertionError(f"an error without details: {error.code()} {error.details()}")


def _typed_fault(status: int | str, message: str, details: list[dict[str, Any]]) -> Fault:
    info, *more = details
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo", details
    assert info["domain"] == "a2a-protocol.org"
    metadata = info.get("metadata", {})
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()), metadata
    assert not any(word in message + repr(details) for word in OUR_WORDS), (message, details)
    fault = Fault(status, info["reason"], message, metadata)
    for detail in more:
        assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest", details
        fault.fields |= {violation["field"]: violation["description"] for violation in detail["fieldViolations"]}
    return fault


def _over_rest(gateway: Gateway, method: str, params: dict[str, Any], agent: str, headers: dict[str, str]) -> Any:
    _, verb, path = REQUESTS[method]
    rest_params = dict(params)
    for name in ("id", "taskId"):
        if "{" + name + "}" in path:
            path = path.replace("{" + name + "}", str(rest_params.pop(name)))
    if verb == "GET":
        path += "?" + "&".join(f"{name}={value}" for name, value in rest_params.items())
    return rest(gateway, verb, path, rest_params if verb == "POST" else None, agent=agent, **headers)


async def _over_grpc(
    gateway: Gateway, method: str, params: dict[str, Any], agent: str, headers: dict[str, str]
) -> Fault:
    request = ParseDict(params | {"tenant": agent}, REQUESTS[method][0]())
    metadata = {**V1, **{name.replace("_", "-"): value for name, value in headers.items()}}
    metadata = [(name.lower(), value) for name, value in metadata.items()]
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        call = getattr(a2a_pb2_grpc.A2AServiceStub(channel), method)(request, metadata=metadata, timeout=LIMIT)
        try:
            if method in ("SendStreamingMessage", "SubscribeToTask"):
                answer = [event async for event in call]
            else:
                answer = await call
        except grpc.aio.AioRpcError as e:
            return from_grpc(e)
    raise AssertionError(f"no error: {answer}")
