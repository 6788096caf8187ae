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
from tests.support.clients import V1, Served, message_json, rest, rpc, serving
from tests.support.faults import fault, from_rest
from tests.support.fleet import Fleet, Gateway, free_port
from tests.support.waiting import eventually

SECRET = "s3cr3t"
ALICE = {"Authorization": f"Bearer {SECRET}-alice"}
BOB = {"Authorization": f"Bearer {SECRET}-bob"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served:
        yield served


@pytest.fixture(scope="module")
def guarded(served: Served) -> Gateway:
    """Gateway of the same fleet that authenticates callers."""
    return start_guarded(served.fleet)


def start_guarded(fleet: Fleet, **env: str) -> Gateway:
    """Start ``tests.support.authenticated`` under uvicorn, with the gateway embedded in another application."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.support.authenticated:asgi", "--factory", "--port", str(port)]
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


def test_the_caller_reaches_a_function(guarded: Gateway) -> None:
    body = message_json() | {"metadata": {"budget": 3, "tags": ["a"]}, "tenant": "acme"}
    headers = {**ALICE, "A2A-Extensions": "https://e.com/b, https://e.com/a", "traceparent": TRACE, "Cookie": "c=1"}

    data = fields_of(rpc(guarded, "SendMessage", body, agent="data", **headers)["result"])

    assert data["user"] == "alice"
    assert data["authenticated"] is True
    assert data["tenant"] == "acme"
    assert data["extensions"] == ["https://e.com/a", "https://e.com/b"]
    assert data["metadata"] == {"budget": 3, "tags": ["a"]}
    assert data["headers"]["traceparent"] == TRACE
    assert set(data["headers"]) == {"a2a-version", "a2a-extensions", "traceparent"}


def test_an_executor_gets_the_caller_in_the_form_of_the_sdk(guarded: Gateway) -> None:
    body = message_json() | {"metadata": {"budget": 3}, "tenant": "acme"}

    task = rpc(guarded, "SendMessage", body, agent="full", **ALICE, A2A_Extensions="https://e.com/a")["result"]["task"]

    words = next(artifact for artifact in task["artifacts"] if artifact["artifactId"] == "b")
    assert words["parts"][0]["text"] == "alice True acme https://e.com/a"
    assert words["metadata"]["metadata"] == {"budget": 3}


def test_without_authentication_the_caller_is_anonymous(served: Served, guarded: Gateway) -> None:
    for gateway, headers in ((guarded, {}), (served.gateway, ALICE)):
        data = fields_of(rest(gateway, "POST", "/message:send", message_json(), agent="data", **headers).json())

        assert data["user"] == ""
        assert data["authenticated"] is False


def test_a_tenant_in_the_path_is_a_tenant(guarded: Gateway) -> None:
    data = fields_of(rest(guarded, "POST", "/acme/message:send", message_json(), agent="data", **ALICE).json())

    assert data["tenant"] == "acme"


def test_extensions_of_a_03_client_are_recognized(guarded: Gateway) -> None:
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    headers = ALICE | {"A2A-Version": "0.3", "X-A2A-Extensions": "https://e.com/a"}

    answer = httpx.post(f"{guarded.url}/agents/data/", json=body, headers=headers, timeout=60).json()

    data = answer["result"]["artifacts"][0]["parts"][0]["data"]
    assert data["extensions"] == ["https://e.com/a"]
    assert data["user"] == "alice"


async def test_a_grpc_callers_parameters_reach_the_agent(served: Served) -> None:
    request = ParseDict(message_json() | {"tenant": "data/acme", "metadata": {"budget": 3}}, SendMessageRequest())
    metadata = [("a2a-version", "1.0"), ("a2a-extensions", "https://e.com/a"), ("traceparent", TRACE)]
    async with grpc.aio.insecure_channel(served.gateway.grpc) as channel:
        answer = await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=metadata, timeout=60)

    data = fields_of(MessageToDict(answer))
    assert data["tenant"] == "acme"
    assert data["extensions"] == ["https://e.com/a"]
    assert data["metadata"] == {"budget": 3}
    assert data["headers"]["traceparent"] == TRACE


def test_the_extended_card_is_for_callers_with_a_name_where_somebody_asks_for_one(
    served: Served, guarded: Gateway
) -> None:
    for path in ("/extendedAgentCard", "/acme/extendedAgentCard"):
        assert rest(guarded, "GET", path, agent="full", **ALICE).json()["name"] == "full-extended"
        assert rest(served.gateway, "GET", path, agent="full").json()["name"] == "full-extended"
        refused = from_rest(rest(guarded, "GET", path, agent="full"))
        assert (refused.status, refused.reason) == (403, "PERMISSION_DENIED")


async def test_another_callers_tasks_are_unknown(guarded: Gateway) -> None:
    asked = rest(guarded, "POST", "/message:send", message_json(contextId="shared"), agent="ask", **ALICE).json()[
        "task"
    ]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("GetTask", {"id": asked["id"]}),
        ("CancelTask", {"id": asked["id"]}),
        ("SubscribeToTask", {"id": asked["id"]}),
        ("SendMessage", message_json("7", taskId=asked["id"])),
        ("SendStreamingMessage", message_json("7", taskId=asked["id"])),
    ]
    strangers: list[dict[str, str]] = [BOB, {}]

    for headers in strangers:
        for method, params in calls:
            unknown = await fault(guarded, "JSONRPC", method, params, agent="ask", **headers)
            assert unknown.reason == "TASK_NOT_FOUND", method
        listed = rest(guarded, "GET", "/tasks?contextId=shared", agent="ask", **headers).json()
        assert listed["tasks"] == []
        assert listed["totalSize"] == 0
    mine = rest(guarded, "GET", "/tasks?contextId=shared", agent="ask", **ALICE).json()
    assert [task["id"] for task in mine["tasks"]] == [asked["id"]]
    assert mine["tasks"][0]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


async def test_a_page_token_opens_no_other_callers_list(guarded: Gateway) -> None:
    for _ in range(3):
        rest(guarded, "POST", "/message:send", message_json(), agent="sync-echo", **ALICE)
    page = rest(guarded, "GET", "/tasks?pageSize=1", agent="sync-echo", **ALICE).json()
    assert page["nextPageToken"]

    stolen = rest(guarded, "GET", f"/tasks?pageToken={page['nextPageToken']}", agent="sync-echo", **BOB).json()

    assert stolen["tasks"] == []


def test_credentials_are_written_down_nowhere(tmp_path: Path) -> None:
    with serving(tmp_path, pool=None, grpc=False) as served:
        guarded = start_guarded(served.fleet)
        headers = {**ALICE, "Cookie": f"session={SECRET}", "X-Api-Key": SECRET, "Proxy-Authorization": SECRET}
        task_ids = []
        for agent in ("full", "data"):
            body = message_json("who am I") | {"configuration": {"returnImmediately": True}}
            answer = rest(guarded, "POST", "/message:send", body, agent=agent, **headers)
            task_ids.append(answer.json()["task"]["id"])

        queued = stored(served.fleet)
        assert "alice" in queued, "what is stored can be read here"
        assert SECRET not in queued

        served.fleet.worker(pool="threads")
        eventually(lambda: all(_completed(guarded, *ids) for ids in zip(("full", "data"), task_ids, strict=True)))
        assert SECRET not in stored(served.fleet)
        assert SECRET not in served.fleet.logs()


def _completed(gateway: Gateway, agent: str, task_id: str) -> bool:
    task = httpx.get(f"{gateway.url}/agents/{agent}/tasks/{task_id}", headers=V1 | ALICE, timeout=60).json()
    return bool(task["status"]["state"] == "TASK_STATE_COMPLETED")


def stored(fleet: Fleet) -> str:
    """Return the contents of the store and the broker, which share the fleet's Redis server, as text."""
    found = []
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
            found.append(f"{key!r}: {value!r}")
        client.close()
    return "\n".join(found)
