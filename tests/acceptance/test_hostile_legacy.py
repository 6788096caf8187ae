"""Invalid requests of protocol 0.3. Every response is an error of that protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.test_hostile import envelope, unexpected_tracebacks
from tests.support.clients.bindings import V1, ServedFleet, serve_fleet
from tests.support.clients.faults import OUR_WORDS, from_rest
from tests.support.waiting import LIMIT

V03 = {"A2A-Version": "0.3", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", grpc=False) as served_fleet:
        yield served_fleet
        assert not unexpected_tracebacks(served_fleet.gateway.output())


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=LIMIT) as http:
        yield http


LEGACY = {
    "nothing": "{}",
    "no content": '{"request": {"messageId": "m", "role": "ROLE_USER", "content": []}}',
    "an empty part": '{"request": {"messageId": "m", "role": "ROLE_USER", "content": [{}]}}',
    "no role": '{"request": {"messageId": "m", "content": [{"text": "x"}]}}',
    "the wrong type": '{"request": []}',
    "invalid base64": (
        '{"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": "@@"}}]}}'
    ),
    "a number too large": '{"request": {"messageId": "m", "content": [{"data": {"data": {"a": 1' + "0" * 400 + "}}}]}}",
}


@pytest.mark.parametrize("path", ["message:send", "message:stream"])
@pytest.mark.parametrize("body", LEGACY.values(), ids=LEGACY)
def test_a_bad_message_of_protocol_03_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, path: str, body: str
) -> None:
    answer = http.post(f"{served_fleet.url}/v1/{path}", content=body, headers=V03)

    assert from_rest(answer).status == 400


@pytest.mark.parametrize("path", ["message:send", "tasks/t/pushNotificationConfigs"])
@pytest.mark.parametrize("body", ['{"request": 5, "config": 5}', '{"tenant": 5}', '{"request": {"messageId": 5}}'])
def test_an_error_of_protocol_03_contains_no_internals(
    served_fleet: ServedFleet, http: httpx.Client, path: str, body: str
) -> None:
    answer = http.post(f"{served_fleet.url}/agents/ask/v1/{path}", content=body, headers=V03)

    assert from_rest(answer).reason in ("INVALID_PARAMS", "PUSH_NOTIFICATION_NOT_SUPPORTED")
    assert not any(word in answer.text for word in ("'int'", "len()", "a2a.v1", "Failed to parse"))


def test_a_bad_history_length_of_protocol_03_is_refused(served_fleet: ServedFleet, http: httpx.Client) -> None:
    for history_length in ("some", "-1", "1.5", "9" * 40):
        answer = http.get(f"{served_fleet.url}/v1/tasks/x?historyLength={history_length}", headers=V03)

        assert from_rest(answer).status in (400, 404)


LEGACY_RPC: dict[str, dict[str, Any]] = {
    "no params": {"params": ...},
    "a list": {"params": []},
    "no message id": {"params": {"message": {"role": "user", "parts": []}}},
    "an unknown kind of part": {
        "params": {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "smell"}]}}
    },
    "the agent's role": {
        "params": {"message": {"messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "x"}]}}
    },
    "a number too large": {
        "params": {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "data", "data": {"a": 10**400}}]}}
    },
}


@pytest.mark.parametrize("change", LEGACY_RPC.values(), ids=LEGACY_RPC)
def test_a_bad_json_rpc_message_of_protocol_03_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, change: dict[str, Any]
) -> None:
    answer = http.post(f"{served_fleet.url}/", content=envelope(method="message/send", **change), headers=V03)

    assert answer.status_code == 200
    error = answer.json()["error"]
    assert error["code"] == -32602
    assert not any(word in json.dumps(error) for word in OUR_WORDS)


def legacy_message(text: str = "x", **fields: Any) -> dict[str, Any]:
    """Return the parameters of message/send in protocol 0.3."""
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": text}]}
    return {"message": message | fields}


def legacy_error(http: httpx.Client, url: str, method: str, params: Any, headers: dict[str, str]) -> dict[str, Any]:
    """Make a JSON-RPC call of protocol 0.3 and return its error. A stream contains the error in its only frame."""
    answer = http.post(url, content=envelope(method=method, params=params), headers=headers)
    text = answer.text.strip().removeprefix("data:") if method == "message/stream" else answer.text
    error: dict[str, Any] = json.loads(text)["error"]
    return error


def test_a_method_of_03_under_the_flag_of_10_is_not_found(served_fleet: ServedFleet, http: httpx.Client) -> None:
    answer = http.post(
        f"{served_fleet.url}/", content=envelope(method="message/send", params=legacy_message()), headers=V1
    )

    assert answer.json()["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
def test_errors_that_03_has_no_code_for_are_no_internal_errors(
    served_fleet: ServedFleet, http: httpx.Client, method: str
) -> None:
    error = legacy_error(http, f"{served_fleet.url}/agents/strict/", method, legacy_message(), V03)

    assert error["code"] == -32004
    assert "extension" in error["message"]


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
def test_what_is_wrong_with_a_message_of_03_is_named(
    served_fleet: ServedFleet, http: httpx.Client, method: str
) -> None:
    error = legacy_error(http, f"{served_fleet.url}/", method, legacy_message(contextId="x" * 257), V03)

    assert error["code"] == -32602
    assert [item["field"] for item in error["data"]["errors"]] == ["message.context_id"]


def test_the_error_for_an_incomplete_webhook_of_03_names_only_the_field(
    served_fleet: ServedFleet, http: httpx.Client
) -> None:
    config = {"url": "https://hooks.example.com/", "authentication": {"scheme": "Bearer"}}
    params = {"taskId": "t", "pushNotificationConfig": config}

    error = legacy_error(http, f"{served_fleet.url}/", "tasks/pushNotificationConfig/set", params, V03)

    assert error["code"] == -32602
    assert error["data"]["errors"] == [
        {"field": "params.pushNotificationConfig.authentication.schemes", "message": "Field required"}
    ]
