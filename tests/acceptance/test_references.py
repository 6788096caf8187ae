"""References to other tasks, and active extensions in responses. References reach the agent if the caller owns the
tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from tests.support.agents.basic import OPTIONAL_EXTENSIONS
from tests.support.clients.bindings import BINDINGS, ServedFleet, message_json, rest, rpc, serve_fleet
from tests.support.clients.faults import fault
from tests.support.waiting import LIMIT

ONE, TWO = OPTIONAL_EXTENSIONS


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served_fleet:
        yield served_fleet


def run_task(served_fleet: ServedFleet, agent: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a message and return its completed task."""
    task: dict[str, Any] = rpc(served_fleet.gateway, "SendMessage", body, agent=agent)["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def output_of(task: dict[str, Any]) -> Any:
    part = task["artifacts"][0]["parts"][0]
    return part["data"] if "data" in part else part["text"].split()


def test_an_agent_gets_the_tasks_that_a_message_refers_to(served_fleet: ServedFleet) -> None:
    for agent in ("related", "related-executor"):
        first, second = (run_task(served_fleet, agent, message_json()) for _ in range(2))
        refer = [second["id"], "nobody", first["id"], second["id"]]

        task_lines = output_of(run_task(served_fleet, agent, message_json(referenceTaskIds=refer)))

        assert [item.partition(":")[0] for item in task_lines] == [second["id"], first["id"]], agent


def test_they_come_with_their_artifacts(served_fleet: ServedFleet) -> None:
    first = run_task(served_fleet, "related", message_json())
    second = run_task(served_fleet, "related", message_json(referenceTaskIds=[first["id"]]))
    third = run_task(served_fleet, "related-executor", message_json())

    assert output_of(second) == [f"{first['id']}: 1"]
    assert output_of(run_task(served_fleet, "related-executor", message_json(referenceTaskIds=[third["id"]]))) == [
        third["id"]
    ]


def test_tasks_of_others_are_not_returned(served_fleet: ServedFleet) -> None:
    other_agent = run_task(served_fleet, "echo", message_json())
    other_tenant = run_task(served_fleet, "related", message_json() | {"tenant": "acme"})
    refer = [other_agent["id"], other_tenant["id"]]

    assert output_of(run_task(served_fleet, "related-executor", message_json(referenceTaskIds=refer))) == []
    mine = run_task(served_fleet, "related", message_json(referenceTaskIds=refer) | {"tenant": "acme"})
    assert [item.partition(":")[0] for item in output_of(mine)] == [other_tenant["id"]]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_refers_to_so_many_tasks_at_most(served_fleet: ServedFleet, binding: str) -> None:
    assert run_task(served_fleet, "echo", message_json(referenceTaskIds=["nobody"] * 16))
    for refer in (["nobody"] * 17, ["n" * 257]):
        received_fault = await fault(
            served_fleet.gateway, binding, "SendMessage", message_json(referenceTaskIds=refer), agent="related"
        )

        assert received_fault.reason == "INVALID_PARAMS"
        assert list(received_fault.fields) == ["message.reference_task_ids"]


@pytest.mark.parametrize(
    ("requested_extensions", "active"),
    [
        (f"{TWO}, {ONE}", f"{ONE},{TWO}"),
        (f"{ONE},https://example.com/unknown", ONE),
        ("https://example.com/unknown", None),
        (None, None),
    ],
)
async def test_active_extensions_are_in_the_response(
    served_fleet: ServedFleet, requested_extensions: str | None, active: str | None
) -> None:
    headers = {} if requested_extensions is None else {"A2A-Extensions": requested_extensions}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message_json()}
    url = f"{served_fleet.url}/agents/related-executor"

    answers = [
        httpx.request("POST", url, json=body, headers={"A2A-Version": "1.0", **headers}, timeout=LIMIT),  # noqa: ASYNC210
        rest(served_fleet.gateway, "POST", "/message:send", message_json(), agent="related-executor", **headers),
        rest(served_fleet.gateway, "POST", "/message:stream", message_json(), agent="related-executor", **headers),
    ]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.headers.get("a2a-extensions") for answer in answers] == [active] * 3
    assert await over_grpc(served_fleet, "SendMessage", headers) == active
    assert await over_grpc(served_fleet, "SendStreamingMessage", headers) == active


async def over_grpc(served_fleet: ServedFleet, method: str, headers: dict[str, str]) -> str | None:
    """Make a gRPC call and return the extensions in the initial metadata of the response."""
    request = ParseDict(message_json() | {"tenant": "related-executor"}, SendMessageRequest())
    metadata = [("a2a-version", "1.0"), *((name.lower(), value) for name, value in headers.items())]
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        call = getattr(a2a_pb2_grpc.A2AServiceStub(channel), method)(request, metadata=metadata, timeout=LIMIT)
        if method == "SendMessage":
            await call
        else:
            assert [event async for event in call]
        return dict(await call.initial_metadata()).get("a2a-extensions")


async def test_an_error_is_an_error_also_with_extensions(served_fleet: ServedFleet) -> None:
    for binding in BINDINGS:
        received_fault = await fault(
            served_fleet.gateway, binding, "GetTask", {"id": "nobody"}, agent="related-executor", A2A_Extensions=ONE
        )

        assert received_fault.reason == "TASK_NOT_FOUND"
