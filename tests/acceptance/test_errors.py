"""Errors over each binding, with the typed details of the specification, and the enforcement of capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from a2a.types import Part

from tests.support.agents.basic import REQUIRED_EXTENSION
from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    message_json,
    rpc,
    sdk_client,
    send,
    serve_fleet,
    texts,
)
from tests.support.clients.faults import fault


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def ended_task(served_fleet: ServedFleet) -> dict[str, Any]:
    """COMPLETED task of the agent "echo"."""
    task: dict[str, Any] = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="echo")["result"][
        "task"
    ]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    return task


pytestmark = pytest.mark.parametrize("binding", BINDINGS)


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
@pytest.mark.parametrize("task_id", ["nobody", "a{b}c*", "\u00e9\u4e2d"])
async def test_an_unknown_task_is_not_found(served_fleet: ServedFleet, binding: str, method: str, task_id: str) -> None:
    received_fault = await fault(served_fleet.gateway, binding, method, {"id": task_id}, agent="echo")

    assert received_fault.reason == "TASK_NOT_FOUND"
    assert received_fault.metadata in ({"taskId": task_id}, {})


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
async def test_another_agents_task_is_unknown(
    served_fleet: ServedFleet, binding: str, method: str, ended_task: dict[str, Any]
) -> None:
    received_fault = await fault(served_fleet.gateway, binding, method, {"id": ended_task["id"]}, agent="count")

    assert received_fault.reason == "TASK_NOT_FOUND"


async def test_another_tenants_task_is_unknown(served_fleet: ServedFleet, binding: str) -> None:
    body = message_json("hello") | {"tenant": "acme"}
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="echo")["result"]["task"]
    assert rpc(served_fleet.gateway, "GetTask", {"id": task["id"], "tenant": "acme"}, agent="echo")["result"] == task

    received_fault = await fault(served_fleet.gateway, binding, "GetTask", {"id": task["id"]}, agent="echo")

    assert received_fault.reason == "TASK_NOT_FOUND"


async def test_a_message_to_an_unknown_task_is_not_found(served_fleet: ServedFleet, binding: str) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        received_fault = await fault(served_fleet.gateway, binding, method, message_json(taskId="nobody"), agent="echo")

        assert received_fault.reason == "TASK_NOT_FOUND"


async def test_a_message_to_an_ended_task_is_unsupported(
    served_fleet: ServedFleet, binding: str, ended_task: dict[str, Any]
) -> None:
    received_fault = await fault(
        served_fleet.gateway, binding, "SendMessage", message_json(taskId=ended_task["id"]), agent="echo"
    )

    assert received_fault.reason == "UNSUPPORTED_OPERATION"
    assert "referenceTaskIds" in received_fault.message


async def test_an_ended_task_is_neither_cancelled_nor_followed(
    served_fleet: ServedFleet, binding: str, ended_task: dict[str, Any]
) -> None:
    cancel_fault = await fault(served_fleet.gateway, binding, "CancelTask", {"id": ended_task["id"]}, agent="echo")
    subscribe_fault = await fault(
        served_fleet.gateway, binding, "SubscribeToTask", {"id": ended_task["id"]}, agent="echo"
    )

    assert cancel_fault.reason == "TASK_NOT_CANCELABLE"
    assert subscribe_fault.reason == "UNSUPPORTED_OPERATION"


async def test_a_message_that_names_another_context_is_invalid(served_fleet: ServedFleet, binding: str) -> None:
    question_task = rpc(served_fleet.gateway, "SendMessage", message_json("some"), agent="ask")["result"]["task"]

    received_fault = await fault(
        served_fleet.gateway,
        binding,
        "SendMessage",
        message_json(taskId=question_task["id"], contextId="another"),
        agent="ask",
    )

    assert received_fault.reason == "INVALID_PARAMS"
    assert list(received_fault.fields) == ["message.context_id"]


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
    served_fleet: ServedFleet, binding: str, message: dict[str, Any], field: str
) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        received_fault = await fault(served_fleet.gateway, binding, method, message_json(**message), agent="echo")

        assert received_fault.reason == "INVALID_PARAMS"
        assert list(received_fault.fields) == [field]
        assert received_fault.message == f"{field}: {received_fault.fields[field]}"


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
    served_fleet: ServedFleet, binding: str, params: dict[str, Any], field: str
) -> None:
    received_fault = await fault(served_fleet.gateway, binding, "ListTasks", params, agent="echo")

    assert received_fault.reason == "INVALID_PARAMS"
    assert list(received_fault.fields) == [field]


async def test_a_negative_history_length_is_invalid(
    served_fleet: ServedFleet, binding: str, ended_task: dict[str, Any]
) -> None:
    params = {"id": ended_task["id"], "historyLength": -1}
    got = await fault(served_fleet.gateway, binding, "GetTask", params, agent="echo")
    body = message_json() | {"configuration": {"historyLength": -1}}
    send_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="echo")

    assert list(got.fields) == ["history_length"]
    assert list(send_fault.fields) == ["configuration.history_length"]


async def test_an_agent_that_does_not_stream_refuses_to(served_fleet: ServedFleet, binding: str) -> None:
    for method, params in (("SendStreamingMessage", message_json()), ("SubscribeToTask", {"id": "nobody"})):
        assert (
            await fault(served_fleet.gateway, binding, method, params, agent="quiet")
        ).reason == "UNSUPPORTED_OPERATION"


async def test_push_notifications_are_refused_by_an_agent_without(served_fleet: ServedFleet, binding: str) -> None:
    inline = message_json() | {"configuration": {"taskPushNotificationConfig": {"url": "https://example.com/hook"}}}
    calls = [
        ("SendMessage", inline),
        ("SendStreamingMessage", inline),
        ("GetTaskPushNotificationConfig", {"taskId": "nobody", "id": "none"}),
    ]
    for method, params in calls:
        received_fault = await fault(served_fleet.gateway, binding, method, params, agent="echo")

        assert received_fault.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED", method


async def test_an_extended_card_that_is_not_declared_or_not_there_is_refused(
    served_fleet: ServedFleet, binding: str
) -> None:
    undeclared_fault = await fault(served_fleet.gateway, binding, "GetExtendedAgentCard", {}, agent="echo")
    missing_fault = await fault(served_fleet.gateway, binding, "GetExtendedAgentCard", {}, agent="promises-card")

    assert undeclared_fault.reason == "UNSUPPORTED_OPERATION"
    assert missing_fault.reason == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"


async def test_a_required_extension_must_be_declared(served_fleet: ServedFleet, binding: str) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        received_fault = await fault(served_fleet.gateway, binding, method, message_json(), agent="strict")
        assert received_fault.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert REQUIRED_EXTENSION in received_fault.message

    extensions = f"https://example.com/other,{REQUIRED_EXTENSION}"
    answer = rpc(served_fleet.gateway, "SendMessage", message_json(), agent="strict", A2A_Extensions=extensions)
    assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("version", ["2.0", "0.1", "one", "1.0; drop"])
async def test_another_protocol_version_is_refused(served_fleet: ServedFleet, binding: str, version: str) -> None:
    for method, params in (("SendMessage", message_json()), ("GetTask", {"id": "x"}), ("ListTasks", {})):
        received_fault = await fault(served_fleet.gateway, binding, method, params, agent="echo", A2A_Version=version)

        assert received_fault.reason == "VERSION_NOT_SUPPORTED"


async def test_a_media_type_that_the_agent_does_not_take_is_refused(served_fleet: ServedFleet, binding: str) -> None:
    for media_type in ("image/png", "text/plain2", "x" * 20_000):
        body = message_json(parts=[{"raw": "AAAA", "mediaType": media_type}])

        received_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="echo")

        assert received_fault.reason == "CONTENT_TYPE_NOT_SUPPORTED"
        assert "application/json, text/plain" in received_fault.message


@pytest.mark.parametrize("media_type", ["text/plain; charset=utf-8", "text/plain;charset=UTF-8", "Text/Plain"])
async def test_parameters_and_case_of_a_media_type_are_ignored(
    served_fleet: ServedFleet, binding: str, media_type: str
) -> None:
    async with sdk_client(served_fleet.gateway, "echo", binding, streaming=False) as client:
        task = await send(client, "there", parts=[Part(text="hello", media_type=media_type)])

    assert texts(task) == ["hello\nthere"]
