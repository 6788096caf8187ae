"""Errors over each binding, with the typed details of the specification, and the enforcement of capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agents import REQUIRED_EXTENSION
from tests.support.clients import BINDINGS, Served, message_json, rpc, serving
from tests.support.faults import fault


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served:
        yield served


@pytest.fixture(scope="module")
def ended(served: Served) -> dict[str, Any]:
    """COMPLETED task of "echo"."""
    task: dict[str, Any] = rpc(served.gateway, "SendMessage", message_json("hello"), agent="echo")["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    return task


pytestmark = pytest.mark.parametrize("binding", BINDINGS)


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
@pytest.mark.parametrize("task_id", ["nobody", "a{b}c*", "\u00e9\u4e2d"])
async def test_an_unknown_task_is_not_found(served: Served, binding: str, method: str, task_id: str) -> None:
    found = await fault(served.gateway, binding, method, {"id": task_id}, agent="echo")

    assert found.reason == "TASK_NOT_FOUND"
    assert found.metadata in ({"taskId": task_id}, {})


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
async def test_another_agents_task_is_unknown(served: Served, binding: str, method: str, ended: dict[str, Any]) -> None:
    found = await fault(served.gateway, binding, method, {"id": ended["id"]}, agent="count")

    assert found.reason == "TASK_NOT_FOUND"


async def test_another_tenants_task_is_unknown(served: Served, binding: str) -> None:
    body = message_json("hello") | {"tenant": "acme"}
    task = rpc(served.gateway, "SendMessage", body, agent="echo")["result"]["task"]
    assert rpc(served.gateway, "GetTask", {"id": task["id"], "tenant": "acme"}, agent="echo")["result"] == task

    found = await fault(served.gateway, binding, "GetTask", {"id": task["id"]}, agent="echo")

    assert found.reason == "TASK_NOT_FOUND"


async def test_a_message_to_an_unknown_task_is_not_found(served: Served, binding: str) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        found = await fault(served.gateway, binding, method, message_json(taskId="nobody"), agent="echo")

        assert found.reason == "TASK_NOT_FOUND"


async def test_a_message_to_an_ended_task_is_unsupported(served: Served, binding: str, ended: dict[str, Any]) -> None:
    found = await fault(served.gateway, binding, "SendMessage", message_json(taskId=ended["id"]), agent="echo")

    assert found.reason == "UNSUPPORTED_OPERATION"
    assert "referenceTaskIds" in found.message


async def test_an_ended_task_is_neither_cancelled_nor_followed(
    served: Served, binding: str, ended: dict[str, Any]
) -> None:
    canceled = await fault(served.gateway, binding, "CancelTask", {"id": ended["id"]}, agent="echo")
    followed = await fault(served.gateway, binding, "SubscribeToTask", {"id": ended["id"]}, agent="echo")

    assert canceled.reason == "TASK_NOT_CANCELABLE"
    assert followed.reason == "UNSUPPORTED_OPERATION"


async def test_a_message_that_names_another_context_is_invalid(served: Served, binding: str) -> None:
    asked = rpc(served.gateway, "SendMessage", message_json("some"), agent="ask")["result"]["task"]

    found = await fault(
        served.gateway, binding, "SendMessage", message_json(taskId=asked["id"], contextId="another"), agent="ask"
    )

    assert found.reason == "INVALID_PARAMS"
    assert list(found.fields) == ["message.context_id"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"messageId": ""}, "message.message_id"),
        ({"messageId": "x" * 257}, "message.message_id"),
        ({"contextId": "x" * 257}, "message.context_id"),
        ({"taskId": "x" * 257}, "message.task_id"),
        ({"role": "ROLE_AGENT"}, "message.role"),
        ({"role": "ROLE_UNSPECIFIED"}, "message.role"),
        ({"parts": []}, "message.parts"),
        ({"parts": [{"text": "fine"}, {"mediaType": "text/plain"}]}, "message.parts[1]"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_with_a_message_is_named(
    served: Served, binding: str, message: dict[str, Any], field: str
) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        found = await fault(served.gateway, binding, method, message_json(**message), agent="echo")

        assert found.reason == "INVALID_PARAMS"
        assert list(found.fields) == [field]
        assert found.message == f"{field}: {found.fields[field]}"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"pageSize": 0}, "page_size"),
        ({"pageSize": 101}, "page_size"),
        ({"pageSize": -1}, "page_size"),
        ({"historyLength": -1}, "history_length"),
        ({"pageToken": "zzz"}, "page_token"),
        ({"pageToken": "bm90IG91cnM"}, "page_token"),
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_list_request_is_named(
    served: Served, binding: str, params: dict[str, Any], field: str
) -> None:
    found = await fault(served.gateway, binding, "ListTasks", params, agent="echo")

    assert found.reason == "INVALID_PARAMS"
    assert list(found.fields) == [field]


async def test_a_negative_history_length_is_invalid(served: Served, binding: str, ended: dict[str, Any]) -> None:
    params = {"id": ended["id"], "historyLength": -1}
    got = await fault(served.gateway, binding, "GetTask", params, agent="echo")
    body = message_json() | {"configuration": {"historyLength": -1}}
    sent = await fault(served.gateway, binding, "SendMessage", body, agent="echo")

    assert list(got.fields) == ["history_length"]
    assert list(sent.fields) == ["configuration.history_length"]


async def test_an_agent_that_does_not_stream_refuses_to(served: Served, binding: str) -> None:
    for method, params in (("SendStreamingMessage", message_json()), ("SubscribeToTask", {"id": "nobody"})):
        assert (await fault(served.gateway, binding, method, params, agent="quiet")).reason == "UNSUPPORTED_OPERATION"


async def test_push_notifications_are_refused_by_an_agent_without(served: Served, binding: str) -> None:
    inline = message_json() | {"configuration": {"taskPushNotificationConfig": {"url": "https://example.com/hook"}}}
    calls = [
        ("SendMessage", inline),
        ("SendStreamingMessage", inline),
        ("GetTaskPushNotificationConfig", {"taskId": "nobody", "id": "none"}),
    ]
    for method, params in calls:
        found = await fault(served.gateway, binding, method, params, agent="echo")

        assert found.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED", method


async def test_an_extended_card_that_is_not_declared_or_not_there_is_refused(served: Served, binding: str) -> None:
    undeclared = await fault(served.gateway, binding, "GetExtendedAgentCard", {}, agent="echo")
    missing = await fault(served.gateway, binding, "GetExtendedAgentCard", {}, agent="promises-card")

    assert undeclared.reason == "UNSUPPORTED_OPERATION"
    assert missing.reason == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"


async def test_a_required_extension_must_be_declared(served: Served, binding: str) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        found = await fault(served.gateway, binding, method, message_json(), agent="strict")
        assert found.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert REQUIRED_EXTENSION in found.message

    declared = f"https://example.com/other,{REQUIRED_EXTENSION}"
    answer = rpc(served.gateway, "SendMessage", message_json(), agent="strict", A2A_Extensions=declared)
    assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("version", ["2.0", "0.1", "one", "1.0; drop"])
async def test_another_protocol_version_is_refused(served: Served, binding: str, version: str) -> None:
    for method, params in (("SendMessage", message_json()), ("GetTask", {"id": "x"}), ("ListTasks", {})):
        found = await fault(served.gateway, binding, method, params, agent="echo", A2A_Version=version)

        assert found.reason == "VERSION_NOT_SUPPORTED"


async def test_a_media_type_that_the_agent_does_not_take_is_refused(served: Served, binding: str) -> None:
    body = message_json(parts=[{"raw": "AAAA", "mediaType": "image/png"}])

    found = await fault(served.gateway, binding, "SendMessage", body, agent="echo")

    assert found.reason == "CONTENT_TYPE_NOT_SUPPORTED"
