"""Calls to A2A operations over each binding, with a common type for their responses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import grpc.aio
import httpx
from a2a.types import a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import status_pb2

from tests.support.clients.bindings import V1, base_url
from tests.support.clients.faults import REQUESTS
from tests.support.processes.fleet import Gateway
from tests.support.waiting import LIMIT

STREAMS = ("SendStreamingMessage", "SubscribeToTask")
LEGACY = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
    "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
    "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
}
"""JSON-RPC methods of protocol 0.3."""


@dataclass(frozen=True)
class Answer:
    """Response to an operation.

    Attributes:
        status: HTTP status code or name of the gRPC status code.
        headers: Content type and authentication challenge, or () for gRPC.
        body: Body as text, or the data of the first event of a stream.
    """

    status: int | str
    headers: tuple[tuple[str, str], ...]
    body: str

    @property
    def data(self) -> Any:
        return json.loads(self.body) if self.body else {}

    def without(self, *ids: str) -> Answer:
        """Return a copy in which "…" replaces each of `ids` in the body."""
        body = self.body
        for word in ids:
            body = body.replace(word, "…")
        return Answer(self.status, self.headers, body)

    @property
    def is_success(self) -> bool:
        return self.status in (200, 204, "OK") and "error" not in self.body


async def ask(
    gateway: Gateway,
    binding: str,
    operation: str,
    params: dict[str, Any],
    tenant: str,
    agent: str,
    credentials: dict[str, str],
) -> Answer:
    """Call an operation over a binding and return the response.

    Args:
        gateway: Gateway that serves the agent.
        binding: Binding of A2A 1.0, or any other text for JSON-RPC in protocol 0.3.
        operation: Name of the operation in A2A 1.0.
        params: Parameters of the operation.
        tenant: Tenant, or "" for none.
        agent: Name of the agent.
        credentials: Headers that authenticate the caller.
    """
    match binding:
        case "JSONRPC":
            return await _over_rpc(gateway, operation, params | {"tenant": tenant}, agent, {**V1, **credentials})
        case "HTTP+JSON":
            return await _over_rest(gateway, operation, params, tenant, agent, {**V1, **credentials})
        case "GRPC":
            return await _over_grpc(gateway, operation, params | {"tenant": f"{agent}/{tenant}"}, {**V1, **credentials})
        case _:
            headers = {"A2A-Version": "0.3", **credentials}
            return await _over_rpc(gateway, LEGACY[operation], _legacy(operation, params), agent, headers)


async def _over_rpc(
    gateway: Gateway, method: str, params: dict[str, Any], agent: str, headers: dict[str, str]
) -> Answer:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await _over_http("POST", f"{base_url(gateway, agent)}/", body, headers)


async def _over_rest(
    gateway: Gateway, operation: str, params: dict[str, Any], tenant: str, agent: str, headers: dict[str, str]
) -> Answer:
    _, verb, path = REQUESTS[operation]
    rest_params = dict(params)
    for name in ("id", "taskId"):
        if "{" + name + "}" in path:
            path = path.replace("{" + name + "}", str(rest_params.pop(name)))
    if verb == "GET" and rest_params:
        path += "?" + "&".join(f"{name}={value}" for name, value in rest_params.items())
    url = base_url(gateway, agent) + (f"/{tenant}" if tenant else "") + path
    return await _over_http(verb, url, rest_params if verb == "POST" else None, headers)


async def _over_http(verb: str, url: str, body: Any, headers: dict[str, str]) -> Answer:
    async with (
        # loading the CA certificates takes longer than a request
        httpx.AsyncClient(timeout=LIMIT, verify=False) as http,
        http.stream(verb, url, json=body, headers=headers) as response,
    ):
        kind = response.headers.get("content-type", "").partition(";")[0]
        response_headers = {"content-type": kind, "www-authenticate": response.headers.get("www-authenticate", "")}
        return Answer(response.status_code, tuple(response_headers.items()), await _text(response, kind))


async def _text(response: httpx.Response, kind: str) -> str:
    if kind != "text/event-stream":
        return (await response.aread()).decode()
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            return line.removeprefix("data:").strip()
    return ""


async def _over_grpc(gateway: Gateway, operation: str, params: dict[str, Any], headers: dict[str, str]) -> Answer:
    request = ParseDict(params, REQUESTS[operation][0]())
    metadata = [(name.lower(), value) for name, value in headers.items()]
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        call = getattr(a2a_pb2_grpc.A2AServiceStub(channel), operation)(request, metadata=metadata, timeout=LIMIT)
        try:
            answer = await (call.read() if operation in STREAMS else call)
        except grpc.aio.AioRpcError as e:
            return _refusal(e)
        finally:
            call.cancel()
    return Answer("OK", (), json.dumps(MessageToDict(answer)))


def _refusal(error: grpc.aio.AioRpcError) -> Answer:
    """Return the error with all its details."""
    status_bytes = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    details = MessageToDict(status_pb2.Status.FromString(status_bytes))  # type: ignore[arg-type]
    return Answer(error.code().name, (), json.dumps({"error": details}))


def _legacy(operation: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return `params` in the format of protocol 0.3."""
    match operation:
        case "SendMessage" | "SendStreamingMessage":
            parts = [{"kind": "text", **part} for part in params["message"]["parts"]]
            return {"message": params["message"] | {"kind": "message", "role": "user", "parts": parts}}
        case "CreateTaskPushNotificationConfig":
            config = {"id": params["id"], "url": params["url"]}
            return {"taskId": params["taskId"], "pushNotificationConfig": config}
        case "GetTaskPushNotificationConfig" | "DeleteTaskPushNotificationConfig":
            return {"id": params["taskId"], "pushNotificationConfigId": params["id"]}
        case "ListTaskPushNotificationConfigs":
            return {"id": params["taskId"]}
        case _:
            return {"id": params["id"]}
