"""Every error of the specification, provoked over every binding. A test fails if an error is missing in this module.

Source: A2A specification 3.3.2 (meaning of the errors), 5.4, 9.5, 10.6 and 11.6 (encoding). ``CODES`` is the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils import errors
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError

from a2a_celery.gateway.bindings.endpoints import rest_error
from a2a_celery.gateway.bindings.grpc_errors import status_code
from a2a_celery.gateway.protocol_errors import EXTRA_RPC_CODES
from a2a_celery.lifecycle.outcomes import INVALID_RESPONSE
from tests.support.clients.bindings import BINDINGS, ServedFleet, message_json, rpc, serve_fleet
from tests.support.clients.faults import CODES, Fault, fault, from_rest, from_rpc
from tests.support.waiting import LIMIT


@dataclass(frozen=True)
class Provocation:
    """Request that causes an error. "ENDED" in its parameters stands for the id of a COMPLETED task."""

    reason: str
    method: str
    params: dict[str, Any]
    agent: str = "echo"
    headers: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """Names in the details of the error: keys of the ErrorInfo's metadata, or the invalid fields."""


PNG = [{"raw": "AAAA", "mediaType": "image/png"}]

PROVOKED: dict[type[A2AError], Provocation] = {
    errors.TaskNotFoundError: Provocation("TASK_NOT_FOUND", "GetTask", {"id": "nobody"}, names=("taskId",)),
    errors.TaskNotCancelableError: Provocation("TASK_NOT_CANCELABLE", "CancelTask", {"id": "ENDED"}, names=("taskId",)),
    errors.PushNotificationNotSupportedError: Provocation(
        "PUSH_NOTIFICATION_NOT_SUPPORTED", "GetTaskPushNotificationConfig", {"taskId": "ENDED", "id": "none"}
    ),
    errors.UnsupportedOperationError: Provocation(
        "UNSUPPORTED_OPERATION", "SendStreamingMessage", message_json(), agent="quiet"
    ),
    errors.ContentTypeNotSupportedError: Provocation(
        "CONTENT_TYPE_NOT_SUPPORTED", "SendMessage", message_json(parts=PNG)
    ),
    errors.ExtendedAgentCardNotConfiguredError: Provocation(
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "GetExtendedAgentCard", {}, agent="promises-card"
    ),
    errors.ExtensionSupportRequiredError: Provocation(
        "EXTENSION_SUPPORT_REQUIRED", "SendMessage", message_json(), agent="strict", names=("extension",)
    ),
    errors.VersionNotSupportedError: Provocation(
        "VERSION_NOT_SUPPORTED", "GetTask", {"id": "ENDED"}, headers={"A2A_Version": "2.0"}
    ),
    errors.InvalidParamsError: Provocation(
        "INVALID_PARAMS", "SendMessage", message_json(role="ROLE_AGENT"), names=("message.role",)
    ),
    errors.InternalError: Provocation("INTERNAL_ERROR", "SendMessage", message_json("raise"), agent="routed"),
}

OF_A_BINDING = {errors.InvalidRequestError, errors.MethodNotFoundError, errors.JSONParseError}
"""Errors of requests that are not valid in their binding. The tests below cause them for each binding."""

NEVER_RETURNED = {errors.InvalidAgentResponseError}
"""Errors that gateways never return. An agent runs in a worker, and its client has already received the task, so an
invalid response of the agent ends the task as FAILED. Other tests check the mapping of the error."""


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def ended_task_id(served_fleet: ServedFleet) -> str:
    """Id of a COMPLETED task of the agent "echo"."""
    task_id: str = rpc(served_fleet.gateway, "SendMessage", message_json(), agent="echo")["result"]["task"]["id"]
    return task_id


def test_no_error_is_missing_here() -> None:
    known_errors = set(PROVOKED) | OF_A_BINDING | NEVER_RETURNED | set(EXTRA_RPC_CODES)  # see test_authentication.py
    assert known_errors == set(JSON_RPC_ERROR_CODE_MAP)
    codes_by_reason = {provocation.reason: JSON_RPC_ERROR_CODE_MAP[error] for error, provocation in PROVOKED.items()}
    assert {reason: CODES[reason][0] for reason in codes_by_reason} == codes_by_reason


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("error", PROVOKED, ids=lambda error: error.__name__)
async def test_each_error_conforms_to_the_specification(
    served_fleet: ServedFleet, ended_task_id: str, binding: str, error: type[A2AError]
) -> None:
    provocation = PROVOKED[error]
    params = {name: ended_task_id if value == "ENDED" else value for name, value in provocation.params.items()}

    # fault() compares code, status and typed details of the response with CODES
    received_fault = await fault(
        served_fleet.gateway, binding, provocation.method, params, agent=provocation.agent, **provocation.headers
    )

    assert received_fault.reason == provocation.reason
    assert received_fault.message
    error_fields = {*received_fault.metadata, *received_fault.fields}
    assert error_fields >= set(provocation.names), error_fields


def test_an_agent_that_answers_nonsense_fails_its_task(served_fleet: ServedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json(), agent="nonsense")["result"]["task"]

    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["status"]["message"]["parts"] == [{"text": INVALID_RESPONSE}]
    assert task["status"]["message"]["metadata"]["error"] == "INVALID_AGENT_RESPONSE"
    assert task["status"]["message"]["metadata"]["reference"]


def test_an_invalid_agent_response_would_conform_to_the_specification() -> None:
    error = errors.InvalidAgentResponseError()
    answer = rest_error(error)

    assert build_error_response(1, error)["error"]["code"] == CODES["INVALID_AGENT_RESPONSE"][0]
    assert answer.status_code == CODES["INVALID_AGENT_RESPONSE"][1]
    assert b"INVALID_AGENT_RESPONSE" in answer.body
    assert status_code(error).name == CODES["INVALID_AGENT_RESPONSE"][2]


def post(served_fleet: ServedFleet, path: str, content: str, media_type: str = "application/json") -> httpx.Response:
    headers = {"A2A-Version": "1.0", "Content-Type": media_type}
    return httpx.post(f"{served_fleet.url}/agents/echo{path}", content=content.encode(), headers=headers, timeout=LIMIT)


def post_invalid(served_fleet: ServedFleet, path: str, content: str, media_type: str = "application/json") -> Fault:
    """Post a raw body and return the error. The path "/" is that of JSON-RPC, and other paths are those of
    HTTP+JSON."""
    answer = post(served_fleet, path, content, media_type)
    return from_rpc(answer.json()) if path == "/" else from_rest(answer)


@pytest.mark.parametrize(
    ("path", "content", "status", "reason"),
    [
        ("/", "{", -32700, "INVALID_JSON"),
        ("/", "[]", -32600, "INVALID_REQUEST"),
        ("/", '{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}', -32601, "METHOD_NOT_FOUND"),
        ("/message:send", "{", 400, "INVALID_REQUEST"),
        ("/message:send", "[]", 400, "INVALID_REQUEST"),
        ("/message:nothing", "{}", 404, "METHOD_NOT_FOUND"),
    ],
)
def test_an_invalid_request_gets_the_error_of_its_binding(
    served_fleet: ServedFleet, path: str, content: str, status: int, reason: str
) -> None:
    received_fault = post_invalid(served_fleet, path, content)

    assert (received_fault.status, received_fault.reason) == (status, reason)


RPC_BODY = '{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}'
REST_BODY = '{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}'


@pytest.mark.parametrize("path", ["/", "/message:send", "/message:stream"])
@pytest.mark.parametrize(
    "media_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "json",
    ],
)
def test_a_body_of_another_media_type_is_refused(served_fleet: ServedFleet, path: str, media_type: str) -> None:
    received_fault = post_invalid(served_fleet, path, RPC_BODY if path == "/" else REST_BODY, media_type)

    assert received_fault.reason == "CONTENT_TYPE_NOT_SUPPORTED"
    assert received_fault.status == CODES[received_fault.reason][0 if path == "/" else 1]
    assert "application/json" in received_fault.message


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/a2a+json", "Application/JSON; charset=utf-8", "application/a2a+json;x=y"],
)
def test_json_under_any_of_its_names_is_read(served_fleet: ServedFleet, media_type: str) -> None:
    assert "result" in post(served_fleet, "/", RPC_BODY, media_type).json()
    assert post(served_fleet, "/message:send", REST_BODY, media_type).status_code == 200


def test_a_request_without_a_body_needs_no_media_type(served_fleet: ServedFleet, ended_task_id: str) -> None:
    answer = post(served_fleet, f"/tasks/{ended_task_id}:cancel", "", "text/plain")

    assert from_rest(answer).reason == "TASK_NOT_CANCELABLE"
