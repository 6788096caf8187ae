"""Requests that deviate from the specification, and their equal responses in every binding."""

from __future__ import annotations

import codecs
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as legacy_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as legacy_pb2_grpc
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    a2a_pb2_grpc,
)
from celery import Celery
from google.protobuf.json_format import ParseDict

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.clock import SYSTEM_CLOCK
from a2a_celery.gateway.asgi import build_asgi
from a2a_celery.lifecycle.json_values import INEXACT
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from tests.support.clients.bindings import message_json
from tests.support.clients.faults import Fault, from_grpc, from_rest, from_rpc
from tests.support.processes.local_gateway import LocalGateway, local_gateway, over_rpc
from tests.support.store.seeds import Seeds, status
from tests.support.waiting import LIMIT

V1 = {"A2A-Version": "1.0"}
V03 = {"A2A-Version": "0.3"}
JSON = {"Content-Type": "application/json"}
PROMPT = message_json() | {"configuration": {"returnImmediately": True}}
LEGACY_MESSAGE = {
    "message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]},
    "configuration": {"blocking": False},
}
MEDIA_TYPE = "application/a2a+json"
REQUEST_TYPES = {
    "ListTasks": ListTasksRequest,
    "GetTask": GetTaskRequest,
    "SendMessage": SendMessageRequest,
    "CancelTask": CancelTaskRequest,
    "GetExtendedAgentCard": GetExtendedAgentCardRequest,
}


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway with two agents, without a worker."""
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        yield gateway


@asynccontextmanager
async def stub(gateway: LocalGateway) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        yield a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]


async def over_grpc(gateway: LocalGateway, method: str, params: Any, version: str | None = "1.0") -> Fault:
    metadata = () if version is None else (("a2a-version", version),)
    async with stub(gateway) as service:
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await getattr(service, method)(ParseDict(params, REQUEST_TYPES[method]()), metadata=metadata, timeout=LIMIT)
    return from_grpc(exc_info.value)


QUERIES = {
    "an unknown status": ("/tasks?status=TASK_STATE_RUNNING", "status"),
    "a status in 0.3's words": ("/tasks?status=working", "status"),
    "no status": ("/tasks?status=", "status"),
    "an unknown number": ("/tasks?status=42", "status"),
    "a number with a fraction": ("/tasks?status=1.5", "status"),
    "a boolean as status": ("/tasks?status=true", "status"),
    "a boolean in capitals": ("/tasks?includeArtifacts=TRUE", "include_artifacts"),
    "a boolean that is none": ("/tasks?includeArtifacts=yes", "include_artifacts"),
    "a size in words": ("/tasks?pageSize=many", "page_size"),
    "a size that is too large for a number": ("/tasks?pageSize=99999999999", "page_size"),
    "a time that is none": ("/tasks?statusTimestampAfter=yesterday", "status_timestamp_after"),
    "a history length in words": ("/tasks/x?historyLength=all", "history_length"),
}


@pytest.mark.parametrize(("path", "field"), QUERIES.values(), ids=QUERIES)
async def test_the_error_names_the_invalid_part_of_a_query(gateway: LocalGateway, path: str, field: str) -> None:
    error = from_rest(await gateway.http.get(path, headers=V1))

    assert (error.status, error.reason, list(error.fields)) == (400, "INVALID_PARAMS", [field])


async def test_a_lawful_query_is_read(gateway: LocalGateway) -> None:
    task = await gateway.send_message()
    query = "status=TASK_STATE_SUBMITTED&pageSize=1&includeArtifacts=true&historyLength=0&unknown=1"
    time_filter = "statusTimestampAfter=2020-01-01T00:00:00Z"

    [entry] = (await gateway.http.get(f"/tasks?{query}&{time_filter}", headers=V1)).json()["tasks"]

    assert (entry["id"], entry["artifacts"]) == (task["id"], [])


async def test_a_task_in_a_list_is_the_task_that_get_task_returns(gateway: LocalGateway) -> None:
    task_id = (await gateway.send_message())["id"]

    single_task = (await gateway.http.get(f"/tasks/{task_id}", headers=V1)).json()
    [list_entry] = (await gateway.http.get("/tasks", headers=V1)).json()["tasks"]
    [over] = (await over_rpc(gateway, "ListTasks", {}))["result"]["tasks"]

    assert single_task == list_entry == over


@pytest.mark.parametrize(("length", "count"), [("0", 0), ("1", 1), (None, 1)])
async def test_a_history_length_of_0_in_03_is_no_history(gateway: LocalGateway, length: str | None, count: int) -> None:
    task_id = (await gateway.send_message())["id"]
    params = {"id": task_id} | ({} if length is None else {"historyLength": int(length)})
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}

    rpc = (await gateway.http.post("/", json=body, headers=V03)).json()["result"]
    query = {} if length is None else {"historyLength": length}
    rest = (await gateway.http.get(f"/v1/tasks/{task_id}", params=query, headers=V03)).json()
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        request = legacy_pb2.GetTaskRequest(name=f"tasks/{task_id}", history_length=int(length or 0))
        over = await legacy_pb2_grpc.A2AServiceStub(channel).GetTask(request, timeout=LIMIT)

    assert [len(rpc.get("history", ())), len(rest.get("history", ()))] == [count] * 2
    assert len(over.history) == 1, "gRPC cannot distinguish 0 from no length"


@pytest.mark.parametrize(("status", "count"), [(1, 1), ("TASK_STATE_SUBMITTED", 1), (3, 0), (0, 1)])
async def test_a_status_is_a_name_or_a_number_in_every_binding(
    gateway: LocalGateway, status: str | int, count: int
) -> None:
    await gateway.send_message()

    rest = (await gateway.http.get(f"/tasks?status={status}", headers=V1)).json()
    rpc = (await over_rpc(gateway, "ListTasks", {"status": status}))["result"]
    async with stub(gateway) as service:
        request = ParseDict({"status": status}, ListTasksRequest())
        page = await service.ListTasks(request, metadata=(("a2a-version", "1.0"),), timeout=LIMIT)

    assert [len(rest["tasks"]), len(rpc["tasks"]), len(page.tasks)] == [count] * 3


@pytest.mark.parametrize("status", ["TASK_STATE_RUNNING", "working", 42])
async def test_an_unknown_status_is_refused_in_every_binding(gateway: LocalGateway, status: str | int) -> None:
    error = from_rpc(await over_rpc(gateway, "ListTasks", {"status": status}))

    assert (error.reason, list(error.fields)) == ("INVALID_PARAMS", ["status"])
    if isinstance(status, int):
        error = await over_grpc(gateway, "ListTasks", {"status": status})
        assert (error.reason, list(error.fields)) == ("INVALID_PARAMS", ["status"])


@pytest.mark.parametrize("version", ["1.1", "1.7", "0.5", "2.0", "1", "one"])
async def test_a_version_that_is_not_served_is_refused_in_every_binding(gateway: LocalGateway, version: str) -> None:
    version_header = {"A2A-Version": version}
    errors = [
        from_rest(await gateway.http.get("/tasks", headers=version_header)),
        from_rest(await gateway.http.get(f"/tasks?A2A-Version={version}")),
        from_rest(await gateway.http.post("/message:send", json={"message": 1}, headers=version_header)),
        from_rpc(await over_rpc(gateway, "ListTasks", {}, **version_header)),
        from_rpc(await over_rpc(gateway, "ListTasks", [], **version_header)),
        from_rpc(await over_rpc(gateway, "message/send", {}, **version_header)),
        await over_grpc(gateway, "ListTasks", {}, version),
    ]

    assert {error.reason for error in errors} == {"VERSION_NOT_SUPPORTED"}


async def test_the_case_of_a_version_parameter_does_not_matter(gateway: LocalGateway) -> None:
    assert (await gateway.http.get("/tasks?a2a-version=1.0")).status_code == 200


async def test_no_version_means_03_in_every_binding(gateway: LocalGateway) -> None:
    errors = [
        from_rest(await gateway.http.get("/tasks")),
        from_rpc(await over_rpc(gateway, "ListTasks", {}, **{"A2A-Version": ""})),
        await over_grpc(gateway, "ListTasks", {}, None),
        await over_grpc(gateway, "ListTasks", {}, "0.3"),
    ]

    assert {error.reason for error in errors} == {"VERSION_NOT_SUPPORTED"}
    assert all("A2A-Version: 1.0" in error.message for error in errors)


async def test_a_patch_number_does_not_count(gateway: LocalGateway) -> None:
    assert (await gateway.http.get("/tasks", headers={"A2A-Version": "1.0.1"})).status_code == 200
    assert "result" in await over_rpc(gateway, "ListTasks", {}, **{"A2A-Version": "1.0.7"})
    async with stub(gateway) as service:
        await service.ListTasks(ListTasksRequest(), metadata=(("a2a-version", "1.0.1"),), timeout=LIMIT)


async def test_a_method_of_03_under_10_is_none(gateway: LocalGateway) -> None:
    assert from_rpc(await over_rpc(gateway, "message/send", {})).status == -32601


TENANTS = {
    "the path": ("GET", "/agents/echo/acme/tasks/{id}", {}),
    "the query": ("GET", "/agents/echo/tasks/{id}?tenant=acme", {}),
    "both": ("GET", "/agents/echo/acme/tasks/{id}?tenant=acme", {}),
    "the agent in the path": ("GET", "/agents/echo/tasks/{id}?tenant=acme", {}),
    "the agent in the query": ("GET", "/tasks/{id}?tenant=echo/acme", {}),
    "the query of a cancel": ("POST", "/agents/echo/tasks/{id}:cancel?tenant=acme", {}),
    "the body of a cancel": ("POST", "/agents/echo/tasks/{id}:cancel", {"tenant": "acme"}),
    "the agent in a body": ("POST", "/tasks/{id}:cancel", {"tenant": "echo/acme"}),
}


@pytest.mark.parametrize(("verb", "path", "body"), TENANTS.values(), ids=TENANTS)
async def test_a_tenant_counts_wherever_http_json_names_it(
    gateway: LocalGateway, verb: str, path: str, body: dict[str, Any]
) -> None:
    task = await gateway.send_message(tenant="acme")

    response = await gateway.http.request(verb, path.format(id=task["id"]), json=body or None, headers=V1)
    elsewhere = await gateway.http.get(f"/agents/echo/tasks/{task['id']}", headers=V1)

    assert (response.status_code, response.json().get("id")) == (200, task["id"])
    assert elsewhere.status_code == 404


async def test_a_message_goes_to_the_tenant_of_its_body(gateway: LocalGateway) -> None:
    body = message_json() | {"configuration": {"returnImmediately": True}, "tenant": "acme"}
    task = (await gateway.http.post("/agents/echo/message:send", json=body, headers=V1)).json()["task"]

    pages = {
        path: [task["id"] for task in (await gateway.http.get(f"/agents/echo{path}", headers=V1)).json()["tasks"]]
        for path in ("/acme/tasks", "/tasks?tenant=acme", "/tasks")
    }

    assert pages == {"/acme/tasks": [task["id"]], "/tasks?tenant=acme": [task["id"]], "/tasks": []}


@pytest.mark.parametrize("path", ["/agents/echo/acme/tasks?tenant=other", "/agents/echo/acme/message:send"])
async def test_a_request_names_one_tenant(gateway: LocalGateway, path: str) -> None:
    body = message_json() | {"tenant": "other"}
    verb = "POST" if path.endswith("send") else "GET"

    error = from_rest(await gateway.http.request(verb, path, json=body if verb == "POST" else None, headers=V1))

    assert (error.status, list(error.fields)) == (400, ["tenant"])


async def test_an_unknown_tenant_is_one_answer_in_every_binding(gateway: LocalGateway) -> None:
    errors = [
        from_rest(await gateway.http.get("/tasks?tenant=nobody", headers=V1)),
        from_rest(await gateway.http.get("/nobody/tasks", headers=V1)),
        from_rpc(await over_rpc(gateway, "ListTasks", {"tenant": "nobody"})),
        await over_grpc(gateway, "ListTasks", {"tenant": "nobody"}),
    ]

    assert {error.reason for error in errors} == {"INVALID_PARAMS"}
    assert all(
        error.fields == {"tenant": "Send AGENT/nobody, with the name of an agent: echo, other."} for error in errors
    )


async def test_the_shared_address_reaches_every_agent(gateway: LocalGateway) -> None:
    task = await gateway.send_message("other")

    pages = [
        (await gateway.http.get("/tasks?tenant=other", headers=V1)).json()["tasks"],
        (await gateway.http.get("/other/tasks", headers=V1)).json()["tasks"],
        (await over_rpc(gateway, "ListTasks", {"tenant": "other"}))["result"]["tasks"],
    ]

    assert [[task["id"] for task in page] for page in pages] == [[task["id"]]] * 3


async def test_the_tenant_v1_is_no_version(gateway: LocalGateway) -> None:
    body = message_json() | {"configuration": {"returnImmediately": True}}

    answer = await gateway.http.post("/agents/echo/v1/message:send", json=body, headers=V1)
    task = answer.json()["task"]

    assert (await gateway.http.get(f"/agents/echo/v1/tasks/{task['id']}", headers=V1)).json()["id"] == task["id"]
    assert (await gateway.http.get(f"/agents/echo/tasks/{task['id']}", headers=V1)).status_code == 404
    legacy = await gateway.http.get(f"/agents/echo/v1/tasks/{task['id']}", headers={"A2A-Version": "0.3"})
    assert legacy.status_code == 404


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "/tasks/nobody", None),
        ("GET", "/nothing/is/here", None),
        ("PUT", "/tasks", None),
        ("GET", "/tasks?pageSize=0", None),
        ("POST", "/message:stream", "{}"),
        ("POST", "/message:send", "{"),
    ],
)
async def test_an_error_of_http_json_has_the_media_type_of_a2a(
    gateway: LocalGateway, verb: str, path: str, body: str | None
) -> None:
    answer = await gateway.http.request(verb, path, content=body, headers=V1)

    assert answer.status_code >= 400
    assert answer.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize("length", [0, 1])
async def test_a_history_of_no_length_is_left_out(gateway: LocalGateway, length: int) -> None:
    task = await gateway.send_message()

    query = f"historyLength={length}"
    [list_entry] = (await gateway.http.get(f"/tasks?{query}", headers=V1)).json()["tasks"]
    single_task = (await gateway.http.get(f"/tasks/{task['id']}?{query}", headers=V1)).json()
    [over] = (await over_rpc(gateway, "ListTasks", {"historyLength": length}))["result"]["tasks"]

    assert {len(task_json.get("history", ())) for task_json in (list_entry, single_task, over)} == {length}
    assert {"history" in task_json for task_json in (list_entry, single_task, over)} == {bool(length)}


@pytest.mark.parametrize(
    ("path", "body", "version"),
    [
        ("/", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": PROMPT}, "1.0"),
        ("/", {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": LEGACY_MESSAGE}, "0.3"),
        ("/message:send", PROMPT, "1.0"),
        (
            "/v1/message:send",
            {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}, "configuration": {}},
            "0.3",
        ),
    ],
)
async def test_a_byte_order_mark_before_a_body_is_skipped(
    gateway: LocalGateway, path: str, body: dict[str, Any], version: str
) -> None:
    content = codecs.BOM_UTF8 + json.dumps(body).encode()

    answer = await gateway.http.post(path, content=content, headers={**JSON, "A2A-Version": version})

    assert answer.status_code == 200, answer.text
    assert "error" not in answer.json()


def part(raw: str) -> dict[str, Any]:
    message = message_json()
    message["message"]["parts"] = [{"text": "a"}, {"raw": raw}]
    return message | {"configuration": {"returnImmediately": True}}


@pytest.mark.parametrize("raw", ["no base64!", "AAAAA", "A", "AA=A", "A===", "\u00e9AAA", "AA==="])
async def test_invalid_base64_is_refused(gateway: LocalGateway, raw: str) -> None:
    rest = await gateway.http.post("/message:send", json=part(raw), headers=V1)
    rpc = await over_rpc(gateway, "SendMessage", part(raw))

    for error in (from_rest(rest), from_rpc(rpc)):
        assert (error.reason, list(error.fields)) == ("INVALID_PARAMS", ["message.parts[1].raw"])


@pytest.mark.parametrize("raw", ["", "AAAA", "AA==", "AA", "-_-_", "+/+/"])
async def test_base64_of_any_kind_is_read(gateway: LocalGateway, raw: str) -> None:
    assert "result" in await over_rpc(gateway, "SendMessage", part(raw))


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def with_values(value: Any) -> dict[str, dict[str, Any]]:
    """Return requests with `value` in each place for structured values, by the name of the place."""
    now = {"configuration": {"returnImmediately": True}}
    in_data, in_part = message_json(), message_json()
    in_data["message"]["parts"].append({"data": value})
    in_part["message"]["parts"][0]["metadata"] = {"k": value}
    in_message = message_json(metadata={"k": value})
    requests = {"data": in_data, "part": in_part, "message": in_message}
    return {name: body | now for name, body in requests.items()} | {
        "request": message_json() | now | {"metadata": {"k": value}}
    }


@pytest.mark.parametrize(("levels", "lists"), [(30, False), (45, True)], ids=["objects", "lists"])
async def test_values_of_the_deepest_nesting_are_executed_and_read(
    gateway: LocalGateway, levels: int, lists: bool
) -> None:
    seeds = Seeds(gateway.store, gateway.keys)
    for body in with_values(nested(levels, lists=lists)).values():
        task_id = (await gateway.http.post("/message:send", json=body, headers=V1)).json()["task"]["id"]
        await seeds.settle_run(await seeds.claim_run(task_id), status(COMPLETED))
        assert (await gateway.http.get(f"/tasks/{task_id}", headers=V1)).status_code == 200

    assert len(await gateway.ids()) == 4


@pytest.mark.parametrize(("levels", "lists"), [(31, False), (46, True)], ids=["objects", "lists"])
@pytest.mark.parametrize("place", with_values(1))
async def test_values_that_are_nested_too_deeply_are_refused_in_every_binding(
    gateway: LocalGateway, place: str, levels: int, lists: bool
) -> None:
    body = with_values(nested(levels, lists=lists))[place]

    errors = [
        from_rest(await gateway.http.post("/message:send", json=body, headers=V1)),
        from_rpc(await over_rpc(gateway, "SendMessage", body)),
        await over_grpc(gateway, "SendMessage", body | {"tenant": "echo"}),
    ]

    assert {(error.reason, *error.fields) for error in errors} == {("INVALID_PARAMS", "message")}
    assert await gateway.ids() == []


NO_BASE64_OF_03 = ["no base64!", "AAAAA", "AA", "AA=A", "A===", "\u00e9AAA", "-_-_"]
"""Texts that are not base64. The last is URL-safe base64, whose characters the SDK's decoder for 0.3 silently drops."""


@pytest.mark.parametrize("content", NO_BASE64_OF_03)
@pytest.mark.parametrize("method", ["send", "stream"])
async def test_a_file_that_is_no_base64_is_refused_under_03(gateway: LocalGateway, method: str, content: str) -> None:
    parts = [{"kind": "text", "text": "a"}, {"kind": "file", "file": {"bytes": content}}]
    params = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": parts}}
    file_part = {"file": {"fileWithBytes": b64encode(content.encode()).decode()}}
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "a"}, file_part]}

    body = {"jsonrpc": "2.0", "id": 1, "method": f"message/{method}", "params": params}
    rpc = json.loads((await gateway.http.post("/", json=body, headers=V03)).text.strip().removeprefix("data:"))
    rest = await gateway.http.post(f"/agents/echo/v1/message:{method}", json={"message": message}, headers=V03)

    assert rpc["error"]["code"] == -32602
    assert [error["field"] for error in rpc["error"]["data"]["errors"]] == ["message.parts[1].file.bytes"]
    assert (rest.status_code, list(from_rest(rest).fields)) == (400, ["message.parts[1].file.bytes"])


@pytest.mark.parametrize("content", ["no base64!", "AA=A"])
async def test_bytes_that_are_no_base64_are_refused_over_http_under_03(gateway: LocalGateway, content: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": content}}]}

    rest = await gateway.http.post("/agents/echo/v1/message:send", json={"message": message}, headers=V03)

    assert rest.status_code == 400


async def test_base64_is_read_under_03(gateway: LocalGateway) -> None:
    parts = [{"kind": "file", "file": {"bytes": content}} for content in ("", "AAAA", "AA==", "+/+/")]
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts}
    params = {"message": message, "configuration": {"blocking": False}}

    assert "result" in await over_rpc(gateway, "message/send", params, **V03)


async def test_an_event_source_of_an_ended_task_gets_no_content(
    gateway: LocalGateway, store: AsyncStore, keys: Keys
) -> None:
    seeds = Seeds(store, keys)
    ended_id = await seeds.create_task_in(COMPLETED, scope=Scope("echo"))
    path, last = f"/tasks/{ended_id}:subscribe", len(await seeds.log(ended_id))

    async def subscribe(verb: str, **headers: str) -> httpx.Response:
        return await gateway.http.request(verb, path, headers=V1 | headers)

    missing = await subscribe("GET", **{"Last-Event-ID": str(last - 1)})
    nothing = await subscribe("GET", **{"Last-Event-ID": str(last)})
    post_response = await subscribe("POST", **{"Last-Event-ID": str(last)})

    assert (missing.status_code, missing.text.count("data:")) == (200, 1)
    assert (nothing.status_code, nothing.content) == (204, b"")
    assert (post_response.status_code, post_response.content) == (200, b"")
    assert from_rest(await subscribe("GET")).reason == "UNSUPPORTED_OPERATION"


async def test_frames_end_in_line_feeds(gateway: LocalGateway, store: AsyncStore, keys: Keys) -> None:
    seeds = Seeds(store, keys)
    ended_id = await seeds.create_task_in(COMPLETED, scope=Scope("echo"))

    answer = await gateway.http.get(f"/tasks/{ended_id}:subscribe", headers=V1 | {"Last-Event-ID": "1"})

    assert b"\r" not in answer.content
    frames = [frame for frame in answer.text.split("\n\n") if frame]
    assert all(json.loads(frame.partition("data: ")[2]) for frame in frames)


@pytest.mark.parametrize("request_id", ["a\nb", "\x1b[2J", "x" * 100_000], ids=["lines", "escape", "long"])
async def test_an_id_comes_back_and_spoils_no_log(
    gateway: LocalGateway, request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "a2a_celery")
    body = {"jsonrpc": "2.0", "id": request_id, "method": "nothing" + request_id}
    answer = (await gateway.http.post("/", json=body, headers=V1)).json()

    assert (answer["id"], answer["error"]["code"]) == (request_id, -32601)
    lines = [record.getMessage() for record in caplog.records]
    assert any("JSON-RPC error -32601" in line for line in lines)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG], "it is the caller's mistake"
    assert all(len(line) < 2000 and (line.isprintable() or not line.startswith("JSON-RPC")) for line in lines)


async def test_a_repeated_answer_to_a_plain_task_returns_the_same_turn(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    app, seeds = Celery("plain", broker="memory://", set_as_current=False), Seeds(store, keys)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix)
    a2a = A2A(app)

    def greet(who: str, where: str = "here") -> str:
        """Greet."""
        return f"{who} in {where}"

    a2a.expose(app.task(greet, shared=False), name="greet", idempotency_window=600)
    asgi = build_asgi(app, a2a.agents, a2a.settings, SYSTEM_CLOCK)
    await store.redis.hset(keys.installation, "schema", SCHEMA)
    now = {"configuration": {"returnImmediately": True}}
    async with (
        asgi.router.lifespan_context(asgi),
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test", timeout=LIMIT) as http,
    ):
        task_id = (await http.post("/message:send", json=message_json("Bob") | now, headers=V1)).json()["task"]["id"]
        await seeds.settle_run(await seeds.claim_run(task_id), status(INPUT_REQUIRED, "Where?"))
        answer, other = (message_json(city, taskId=task_id) | now for city in ("Rome", "Oslo"))
        responses = [await http.post("/message:send", json=body, headers=V1) for body in (answer, answer, other)]
        log = await seeds.log(task_id)

    assert [response.status_code for response in responses] == [200, 200, 400]
    assert responses[0].json() == responses[1].json()
    texts = [entry.event.parts[0].text for entry in log if isinstance(entry.event, Message)]
    assert texts == ["Rome"], "stored once"


@pytest.mark.parametrize("kind", ["data", "metadata"])
@pytest.mark.parametrize(
    ("value", "field", "rule"),
    [
        ({"order": {"id": 1234567890123456789}}, ".order.id", INEXACT),
        ({"a": nested(35)}, "", "nested too deeply"),
        ({"a": nested(60)}, "", "nested too deeply"),
    ],
)
async def test_a_value_that_protobuf_cannot_represent_is_refused_in_every_json_binding(
    gateway: LocalGateway, store: AsyncStore, keys: Keys, kind: str, value: dict[str, Any], field: str, rule: str
) -> None:
    of_kind = {"data": value} if kind == "data" else {"text": "hi", "metadata": value}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [of_kind]}
    rpc_03_part = {"kind": "data" if kind == "data" else "text", **of_kind}
    rpc_03_message = {"kind": "message", "messageId": "m", "role": "user", "parts": [rpc_03_part]}
    rest_03_part = {"data": {"data": value}} if kind == "data" else of_kind
    rest_03_message = {"messageId": "m", "role": "ROLE_USER", "content": [rest_03_part]}

    rest = await gateway.http.post("/agents/echo/message:send", json={"message": message}, headers=V1)
    rpc = await over_rpc(gateway, "SendMessage", {"message": message})
    rest_03 = await gateway.http.post("/agents/echo/v1/message:send", json={"message": rest_03_message}, headers=V03)
    rpc_03 = await over_rpc(gateway, "message/send", {"message": rpc_03_message}, **V03)

    faults = [from_rest(rest), from_rpc(rpc), from_rest(rest_03)]
    assert [fault.reason for fault in faults] == ["INVALID_PARAMS"] * 3
    errors = {name: text for fault in faults for name, text in fault.fields.items()}
    errors |= {error["field"]: error["message"] for error in rpc_03["error"]["data"]["errors"]}
    places = [f"message.{parts}[0].{kind}{field}" for parts in ("parts", "content")] if field else ["message"]
    assert errors.keys() <= {*places, "message.content[0].data.data.order.id"}
    assert all(rule in text for text in errors.values())
    assert await store.redis.keys(f"{keys.prefix}*:task:*") == []
