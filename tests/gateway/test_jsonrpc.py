"""JSON-RPC envelopes: ids, notifications and the methods of both protocol versions."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings.jsonrpc import NAMES_OF_03
from a2a_celery.gateway.bindings.legacy import LegacyRpc
from a2a_celery.gateway.gate import SMALL
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import frames, message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import LocalGateway, local_gateway, over_rpc

V1 = {"A2A-Version": "1.0"}
V03 = {"A2A-Version": "0.3"}
JSON = {"Content-Type": "application/json"}
LEGACY_MESSAGE = {
    "message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]},
    "configuration": {"blocking": False},
}


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway without a worker."""
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        yield gateway


async def test_a_notification_is_carried_out_and_not_answered(gateway: LocalGateway) -> None:
    for method in ("SendMessage", "SendStreamingMessage"):
        body = {"jsonrpc": "2.0", "method": method, "params": message_json()}
        answer = await gateway.http.post("/", json=body, headers=V1)
        assert (answer.status_code, answer.content) == (204, b"")
    wrong = await gateway.http.post("/", json={"jsonrpc": "2.0", "method": "Frobnicate"}, headers=V1)

    assert (wrong.status_code, wrong.content) == (204, b"")
    assert len((await over_rpc(gateway, "ListTasks", {}))["result"]["tasks"]) == 2


@pytest.mark.parametrize(
    ("change", "code", "request_id"),
    [
        ({"more": 1}, None, 1),
        ({"id": None}, None, None),
        ({"jsonrpc": "1.0"}, -32600, 1),
        ({"id": True}, -32600, None),
        ({"id": []}, -32600, None),
        ({"params": "x"}, -32600, 1),
        ({"params": []}, -32602, 1),
    ],
)
async def test_an_envelope_is_one_of_json_rpc(
    gateway: LocalGateway, change: dict[str, Any], code: int | None, request_id: int | None
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}} | change

    answer = (await gateway.http.post("/", json=body, headers=V1)).json()

    assert answer["id"] == request_id
    assert answer.get("error", {}).get("code") == code


IDS = ["1.0", "7.0", "1e3", "1E+2", "1.5", "-0.0", "0", "-1", "null", '""', '"1"', "123456789012345678901234567890"]


@pytest.mark.parametrize(
    ("method", "params", "version", "code"),
    [
        ("GetTask", {"id": "none"}, "1.0", -32001),
        ("ListTasks", {}, "1.0", None),
        ("SubscribeToTask", {"id": "none"}, "1.0", -32001),
        ("frobnicate", {}, "1.0", -32601),
        ("tasks/get", {"id": "none"}, "0.3", -32001),
        ("tasks/get", {"id": 7}, "0.3", -32602),
        ("tasks/resubscribe", {"id": "none"}, "0.3", -32001),
        ("message/send", LEGACY_MESSAGE, "0.3", None),
    ],
)
async def test_the_id_of_a_request_comes_back(
    gateway: LocalGateway, method: str, params: dict[str, Any], version: str, code: int | None
) -> None:
    for request_id in IDS:
        body = f'{{"jsonrpc": "2.0", "id": {request_id}, "method": "{method}", "params": {json.dumps(params)}}}'

        response = await gateway.http.post("/", content=body, headers={**JSON, "A2A-Version": version})
        answer = json.loads(response.text.rpartition("data: ")[2])  # a stream of 0.3 begins with the error

        assert answer["id"] == json.loads(request_id)
        assert str(answer["id"]).startswith("-") == request_id.startswith("-")
        assert answer.get("error", {}).get("code") == code, request_id


@pytest.mark.parametrize(("method", "version"), [("SendStreamingMessage", "1.0"), ("message/stream", "0.3")])
async def test_the_id_of_a_request_is_in_each_event(gateway: LocalGateway, method: str, version: str) -> None:
    params = message_json() if version == "1.0" else LEGACY_MESSAGE
    body = {"jsonrpc": "2.0", "id": 1.5, "method": method, "params": params}

    async with (
        gateway.serve() as http,
        http.stream("POST", "/", json=body, headers={"A2A-Version": version}) as response,
    ):
        first = await anext(frames(response))

    assert first.data["id"] == 1.5
    assert "result" in first.data


async def test_a_refused_request_gets_its_id_back(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> None:
    body = {"jsonrpc": "2.0", "id": 1.5, "method": "GetTask", "params": {"id": "none"}}
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=api_key_entry("ann", "one")) as gateway:
        unknown = await gateway.http.post("/", json=body, headers=V1)
        garbage = await gateway.http.post("/", content="{", headers=V1 | JSON)
        large = await gateway.http.post("/", json=body | {"more": "x" * SMALL}, headers=V1)
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        foreign = await gateway.http.post("/", json=body, headers=V1 | {"Origin": "http://elsewhere.example"})

    answers = (unknown, garbage, large, foreign)
    assert [answer.status_code for answer in answers] == [401, 401, 401, 403]
    assert [answer.json()["id"] for answer in answers] == [1.5, None, None, 1.5]
    assert all(int(answer.headers["content-length"]) == len(answer.content) for answer in answers)


async def test_a_method_of_another_version_is_named(gateway: LocalGateway) -> None:
    for name, legacy_name in NAMES_OF_03.items():
        old = await over_rpc(gateway, legacy_name, {})
        new = await over_rpc(gateway, name, {}, **V03)

        assert old["error"]["code"] == -32601
        assert old["error"]["message"] == f"A2A 1.0 calls this method {name}: send this name, or A2A-Version: 0.3"
        assert new["error"]["code"] == -32009
        text = f"{name} is a method of A2A 1.0, and 0.3 calls it {legacy_name}: send A2A-Version: 1.0"
        assert new["error"]["message"] == text
    lacking = await over_rpc(gateway, "ListTasks", {}, **V03)
    assert lacking["error"]["message"] == "ListTasks is a method of A2A 1.0, and 0.3 lacks it: send A2A-Version: 1.0"


def test_every_method_of_03_has_a_name_in_10() -> None:
    assert set(NAMES_OF_03.values()) == set(LegacyRpc.METHOD_TO_MODEL)
    assert set(NAMES_OF_03) == set(JsonRpcDispatcher.METHOD_TO_MODEL) - {"ListTasks"}


async def test_times_have_milliseconds_in_both_versions(gateway: LocalGateway) -> None:
    """Source: A2A specification 5.6.1."""
    task_id = (await gateway.send_message())["id"]
    legacy_body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task_id}}
    tasks = [
        (await gateway.http.get(f"/tasks/{task_id}", headers=V1)).json(),
        (await gateway.http.get("/tasks", headers=V1)).json()["tasks"][0],
        (await over_rpc(gateway, "GetTask", {"id": task_id}))["result"],
        (await gateway.http.post("/", json=legacy_body, headers=V03)).json()["result"],
        (await gateway.http.get(f"/v1/tasks/{task_id}", headers=V03)).json(),
    ]

    [time] = {task["status"]["timestamp"].replace(".000Z", "Z") for task in tasks}
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]{3})?Z", time)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks/get", {"id": "none"}),
        ("message/send", LEGACY_MESSAGE),
        ("message/stream", LEGACY_MESSAGE),
        ("tasks/resubscribe", {"id": "none"}),
    ],
)
async def test_a_denied_request_of_03_has_the_same_error_with_and_without_a_stream(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, method: str, params: dict[str, Any]
) -> None:
    entry = api_key_entry("ann", "one", tenants="acme")
    body = {"jsonrpc": "2.0", "id": 1.5, "method": method, "params": params}
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=entry) as gateway:
        response = await gateway.http.post("/", json=body, headers=V03 | {"X-API-Key": "one"})

    assert response.status_code == 403
    assert (response.json()["id"], response.json()["error"]["code"]) == (1.5, -31403)
