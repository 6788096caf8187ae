"""Identity of callers in agents, isolation of their tasks, and credentials that are neither stored nor logged."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import redis
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.support import ROOT
from tests.support.clients.bindings import V1, ServedFleet, message_json, rest, rpc, serve_fleet
from tests.support.clients.faults import fault, from_rest
from tests.support.processes.fleet import Fleet, Gateway, free_port
from tests.support.waiting import LIMIT, eventually

SECRET = "s3cr3t"
ALICE = {"Authorization": f"Bearer {SECRET}-alice"}
BOB = {"Authorization": f"Bearer {SECRET}-bob"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def authenticating_gateway(served_fleet: ServedFleet) -> Gateway:
    """Gateway of the same fleet that authenticates callers."""
    return start_guarded(served_fleet.fleet)


def start_guarded(fleet: Fleet, **env: str) -> Gateway:
    """Start ``tests.support.agents.authentication_app``, which embeds the gateway, under uvicorn."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "tests.support.agents.authentication_app:asgi",
        "--factory",
        "--port",
        str(port),
    ]
    own = {
        "CELERY_BROKER_URL": fleet.broker_url,
        "A2A_STORE_URL": fleet.redis.store_url,
        "TEST_QUEUE": fleet.queue,
        "PYTHONPATH": str(ROOT),
    }
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))}
    gateway = Gateway("guarded", command, environ | own | env, fleet.folder / "guarded.log")
    fleet.processes.append(gateway)
    gateway.url, gateway.grpc = f"http://127.0.0.1:{port}", ""
    gateway.wait_for_output("Uvicorn running")
    return gateway


def fields_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the agent "data" received."""
    data: dict[str, Any] = answer["task"]["artifacts"][0]["parts"][0]["data"]
    return data


def test_the_caller_reaches_a_function(authenticating_gateway: Gateway) -> None:
    body = message_json() | {"metadata": {"budget": 3, "tags": ["a"]}, "tenant": "acme"}
    headers = {**ALICE, "A2A-Extensions": "https://e.com/b, https://e.com/a", "traceparent": TRACE, "Cookie": "c=1"}

    data = fields_of(rpc(authenticating_gateway, "SendMessage", body, agent="data", **headers)["result"])

    assert data["user"] == "alice"
    assert data["authenticated"] is True
    assert data["tenant"] == "acme"
    assert data["extensions"] == ["https://e.com/a", "https://e.com/b"]
    assert data["metadata"] == {"budget": 3, "tags": ["a"]}
    assert data["headers"]["traceparent"] == TRACE
    assert set(data["headers"]) == {"a2a-version", "a2a-extensions", "traceparent"}


def test_an_executor_gets_the_caller_in_the_form_of_the_sdk(authenticating_gateway: Gateway) -> None:
    body = message_json() | {"metadata": {"budget": 3}, "tenant": "acme"}

    task = rpc(authenticating_gateway, "SendMessage", body, agent="full", **ALICE, A2A_Extensions="https://e.com/a")[
        "result"
    ]["task"]

    words = next(artifact for artifact in task["artifacts"] if artifact["artifactId"] == "b")
    assert words["parts"][0]["text"] == "alice True acme https://e.com/a"
    assert words["metadata"]["metadata"] == {"budget": 3}


def test_without_authentication_the_caller_is_anonymous(
    served_fleet: ServedFleet, authenticating_gateway: Gateway
) -> None:
    for gateway, headers in ((authenticating_gateway, {}), (served_fleet.gateway, ALICE)):
        data = fields_of(rest(gateway, "POST", "/message:send", message_json(), agent="data", **headers).json())

        assert data["user"] == ""
        assert data["authenticated"] is False


def test_a_tenant_in_the_path_is_a_tenant(authenticating_gateway: Gateway) -> None:
    data = fields_of(
        rest(authenticating_gateway, "POST", "/acme/message:send", message_json(), agent="data", **ALICE).json()
    )

    assert data["tenant"] == "acme"


def test_extensions_of_a_03_client_are_recognized(authenticating_gateway: Gateway) -> None:
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    headers = ALICE | {"A2A-Version": "0.3", "X-A2A-Extensions": "https://e.com/a"}

    answer = httpx.post(f"{authenticating_gateway.url}/agents/data/", json=body, headers=headers, timeout=LIMIT).json()

    data = answer["result"]["artifacts"][0]["parts"][0]["data"]
    assert data["extensions"] == ["https://e.com/a"]
    assert data["user"] == "alice"


async def test_a_grpc_callers_parameters_reach_the_agent(served_fleet: ServedFleet) -> None:
    request = ParseDict(message_json() | {"tenant": "data/acme", "metadata": {"budget": 3}}, SendMessageRequest())
    metadata = [("a2a-version", "1.0"), ("a2a-extensions", "https://e.com/a"), ("traceparent", TRACE)]
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        answer = await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=metadata, timeout=LIMIT)

    data = fields_of(MessageToDict(answer))
    assert data["tenant"] == "acme"
    assert data["extensions"] == ["https://e.com/a"]
    assert data["metadata"] == {"budget": 3}
    assert data["headers"]["traceparent"] == TRACE


def test_the_extended_card_requires_an_authenticated_caller(
    served_fleet: ServedFleet, authenticating_gateway: Gateway
) -> None:
    for path in ("/extendedAgentCard", "/acme/extendedAgentCard"):
        assert rest(authenticating_gateway, "GET", path, agent="full", **ALICE).json()["name"] == "full-extended"
        for gateway in (authenticating_gateway, served_fleet.gateway):
            received_fault = from_rest(rest(gateway, "GET", path, agent="full"))
            assert (received_fault.status, received_fault.reason) == (403, "PERMISSION_DENIED")


async def test_another_callers_tasks_are_unknown(authenticating_gateway: Gateway) -> None:
    question_task = rest(
        authenticating_gateway, "POST", "/message:send", message_json(contextId="shared"), agent="ask", **ALICE
    ).json()["task"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("GetTask", {"id": question_task["id"]}),
        ("CancelTask", {"id": question_task["id"]}),
        ("SubscribeToTask", {"id": question_task["id"]}),
        ("SendMessage", message_json("7", taskId=question_task["id"])),
        ("SendStreamingMessage", message_json("7", taskId=question_task["id"])),
    ]
    strangers: list[dict[str, str]] = [BOB, {}]

    for headers in strangers:
        for method, params in calls:
            unknown = await fault(authenticating_gateway, "JSONRPC", method, params, agent="ask", **headers)
            assert unknown.reason == "TASK_NOT_FOUND", method
        task_list = rest(authenticating_gateway, "GET", "/tasks?contextId=shared", agent="ask", **headers).json()
        assert task_list["tasks"] == []
        assert task_list["totalSize"] == 0
    mine = rest(authenticating_gateway, "GET", "/tasks?contextId=shared", agent="ask", **ALICE).json()
    assert [task["id"] for task in mine["tasks"]] == [question_task["id"]]
    assert mine["tasks"][0]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


async def test_a_page_token_opens_no_other_callers_list(authenticating_gateway: Gateway) -> None:
    for _ in range(3):
        rest(authenticating_gateway, "POST", "/message:send", message_json(), agent="sync-echo", **ALICE)
    page = rest(authenticating_gateway, "GET", "/tasks?pageSize=1", agent="sync-echo", **ALICE).json()
    assert page["nextPageToken"]

    stolen = rest(
        authenticating_gateway, "GET", f"/tasks?pageToken={page['nextPageToken']}", agent="sync-echo", **BOB
    ).json()

    assert stolen["tasks"] == []


def test_credentials_are_written_down_nowhere(tmp_path: Path) -> None:
    with serve_fleet(tmp_path, pool=None, grpc=False) as served_fleet:
        authenticating_gateway = start_guarded(served_fleet.fleet)
        headers = {**ALICE, "Cookie": f"session={SECRET}", "X-Api-Key": SECRET, "Proxy-Authorization": SECRET}
        task_ids = []
        for agent in ("full", "data"):
            body = message_json("who am I") | {"configuration": {"returnImmediately": True}}
            answer = rest(authenticating_gateway, "POST", "/message:send", body, agent=agent, **headers)
            task_ids.append(answer.json()["task"]["id"])

        content = stored_content(served_fleet.fleet)
        assert "alice" in content, "what is stored can be read here"
        assert SECRET not in content

        served_fleet.fleet.worker(pool="threads")
        eventually(
            lambda: all(
                _is_completed(authenticating_gateway, *ids) for ids in zip(("full", "data"), task_ids, strict=True)
            )
        )
        assert SECRET not in stored_content(served_fleet.fleet)
        assert SECRET not in served_fleet.fleet.logs()


def _is_completed(gateway: Gateway, agent: str, task_id: str) -> bool:
    task = httpx.get(f"{gateway.url}/agents/{agent}/tasks/{task_id}", headers=V1 | ALICE, timeout=LIMIT).json()
    return bool(task["status"]["state"] == "TASK_STATE_COMPLETED")


def stored_content(fleet: Fleet) -> str:
    """Return the contents of the store and the broker, which share the fleet's Redis server, as text."""
    contents = []
    for database in (0, 1):
        client = redis.Redis.from_url(f"{fleet.redis.store_url}?db={database}")
        for key in client.scan_iter():
            match client.type(key):
                case b"string":
                    value: Any = client.get(key)
                case b"hash":
                    value = client.hgetall(key)
                case b"list":
                    value = client.lrange(key, 0, -1)
                case b"zset":
                    value = client.zrange(key, 0, -1)
                case b"set":
                    value = client.smembers(key)
                case _:
                    value = client.xrange(key)
            contents.append(f"{key!r}: {value!r}")
        client.close()
    return "\n".join(contents)
