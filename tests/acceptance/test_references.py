"""References to other tasks, which reach the agent if the caller owns the tasks, and active extensions in responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from tests.support.agents import OPTIONAL_EXTENSIONS
from tests.support.clients import BINDINGS, Served, message_json, rest, rpc, serving
from tests.support.faults import fault

ONE, TWO = OPTIONAL_EXTENSIONS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served:
        yield served


def ended(served: Served, agent: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a message and return its completed task."""
    task: dict[str, Any] = rpc(served.gateway, "SendMessage", body, agent=agent)["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def output_of(task: dict[str, Any]) -> Any:
    part = task["artifacts"][0]["parts"][0]
    return part["data"] if "data" in part else part["text"].split()


def test_an_agent_gets_the_tasks_that_a_message_refers_to(served: Served) -> None:
    for agent in ("related", "related-executor"):
        first, second = (ended(served, agent, message_json()) for _ in range(2))
        refer = [second["id"], "nobody", first["id"], second["id"]]

        found = output_of(ended(served, agent, message_json(referenceTaskIds=refer)))

        assert [one.partition(":")[0] for one in found] == [second["id"], first["id"]], agent


def test_they_come_with_their_artifacts(served: Served) -> None:
    first = ended(served, "related", message_json())
    second = ended(served, "related", message_json(referenceTaskIds=[first["id"]]))
    third = ended(served, "related-executor", message_json())

    assert output_of(second) == [f"{first['id']}: 1"]
    assert output_of(ended(served, "related-executor", message_json(referenceTaskIds=[third["id"]]))) == [third["id"]]


def test_tasks_of_others_are_not_returned(served: Served) -> None:
    other_agent = ended(served, "echo", message_json())
    other_tenant = ended(served, "related", message_json() | {"tenant": "acme"})
    refer = [other_agent["id"], other_tenant["id"]]

    assert output_of(ended(served, "related-executor", message_json(referenceTaskIds=refer))) == []
    mine = ended(served, "related", message_json(referenceTaskIds=refer) | {"tenant": "acme"})
    assert [one.partition(":")[0] for one in output_of(mine)] == [other_tenant["id"]]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_refers_to_so_many_tasks_at_most(served: Served, binding: str) -> None:
    assert ended(served, "echo", message_json(referenceTaskIds=["nobody"] * 16))
    for refer in (["nobody"] * 17, ["n" * 257]):
        found = await fault(
            served.gateway, binding, "SendMessage", message_json(referenceTaskIds=refer), agent="related"
        )

        assert found.reason == "INVALID_PARAMS"
        assert list(found.fields) == ["message.reference_task_ids"]


@pytest.mark.parametrize(
    ("asked", "active"),
    [
        (f"{TWO}, {ONE}", f"{ONE},{TWO}"),
        (f"{ONE},https://example.com/unknown", ONE),
        ("https://example.com/unknown", None),
        (None, None),
    ],
)
async def test_active_extensions_are_in_the_response(served: Served, asked: str | None, active: str | None) -> None:
    headers = {} if asked is None else {"A2A-Extensions": asked}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message_json()}
    url = f"{served.url}/agents/related-executor"

    answers = [
        httpx.request("POST", url, json=body, headers={"A2A-Version": "1.0", **headers}, timeout=60),  # noqa: ASYNC210
        rest(served.gateway, "POST", "/message:send", message_json(), agent="related-executor", **headers),
        rest(served.gateway, "POST", "/message:stream", message_json(), agent="related-executor", **headers),
    ]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.headers.get("a2a-extensions") for answer in answers] == [active] * 3
    assert await over_grpc(served, "SendMessage", headers) == active
    assert await over_grpc(served, "SendStreamingMessage", headers) == active


async def over_grpc(served: Served, method: str, headers: dict[str, str]) -> str | None:
    """Make a gRPC call and return the extensions in the initial metadata of the response."""
    request = ParseDict(message_json() | {"tenant": "related-executor"}, SendMessageRequest())
    metadata = [("a2a-version", "1.0"), *((name.lower(), value) for name, value in headers.items())]
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        call = getattr(a2a_pb2_grpc.A2AServiceStub(channel), method)(request, metadata=metadata, timeout=60)
        if method == "SendMessage":
            await call
        else:
            assert [event async for event in call]
        return dict(await call.initial_metadata()).get("a2a-extensions")


async def test_an_error_is_an_error_also_with_extensions(served: Served) -> None:
    for binding in BINDINGS:
        found = await fault(
            served.gateway, binding, "GetTask", {"id": "nobody"}, agent="related-executor", A2A_Extensions=ONE
        )

        assert found.reason == "TASK_NOT_FOUND"
