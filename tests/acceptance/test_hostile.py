"""Invalid requests. Every response is an error of the protocol, and none is a 5xx. The gateway keeps serving."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import GetTaskRequest, SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from tests.support.clients.bindings import (
    GRPC_V1,
    KNOWN_RPC_CODES,
    V1,
    ServedFleet,
    message_json,
    rest,
    rpc,
    serve_fleet,
)
from tests.support.clients.faults import from_grpc, from_rest, from_rpc
from tests.support.waiting import LIMIT

MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with serve_fleet(folder, pool="threads", A2A_MAX_REQUEST_BYTES=str(MAX_BYTES)) as served_fleet:
        yield served_fleet
        assert not unexpected_tracebacks(served_fleet.gateway.output())


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=LIMIT) as http:
        yield http


def unexpected_tracebacks(log: str) -> list[str]:
    """Return the lines before unexpected tracebacks, and the error lines of uvicorn and a2a_celery. The SDK's
    tracebacks for requests that it cannot parse are expected."""
    lines = log.splitlines()
    causes = [lines[n - 1] for n, line in enumerate(lines) if line.startswith("Traceback") and lines[n - 1]]
    expected = ("Failed to parse request params", "Failed to validate base JSON-RPC request")
    return [line for line in causes if "ERROR a2a." in line and not any(text in line for text in expected)] + [
        line for line in lines if "ERROR uvicorn" in line or "ERROR a2a_celery" in line
    ]


def envelope(**changes: Any) -> str:
    """Return a valid JSON-RPC request with `changes`. A value of ``...`` removes the member."""
    body = {"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "nobody"}} | changes
    return json.dumps({name: value for name, value in body.items() if value is not ...})


def message(**fields: Any) -> str:
    """Return the parameters of SendMessage as JSON. `fields` are fields of the message."""
    return json.dumps(message_json(**fields) | {"configuration": {"returnImmediately": True}})


NOT_JSON = {
    "cut off": b'{"jsonrpc": "2.0", "id": 1',
    "nothing": b"",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "NaN": b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": NaN}}',
    "-Infinity": b'{"a": -Infinity}',
    "arrays 10,000 deep": b"[" * 10_000 + b"]" * 10_000,
    "objects 10,000 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "never closed": b"[" * 100_000,
    "150 deep": b'{"a":' * 150 + b"1" + b"}" * 150,
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "half a surrogate pair": b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "GetTask", "params": {"id": "x"}}',
    "two values": b"{} {}",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_no_json_is_refused(served_fleet: ServedFleet, http: httpx.Client, body: bytes) -> None:
    over_rpc = http.post(f"{served_fleet.url}/", content=body, headers=V1)
    over_rest = http.post(f"{served_fleet.url}/message:send", content=body, headers=V1)

    assert over_rpc.status_code == 200
    assert from_rpc(over_rpc.json()).status == -32700
    assert over_rpc.json()["id"] is None
    assert from_rest(over_rest).status == 400


ENVELOPES = {
    "a batch": (json.dumps([json.loads(envelope())] * 2), -32600),
    "an empty batch": ("[]", -32600),
    "a string": ('"hello"', -32600),
    "null": ("null", -32600),
    "a boolean id": (envelope(id=True), -32600),
    "an object as id": (envelope(id={"a": 1}), -32600),
    "a list as id": (envelope(id=[1]), -32600),
    "no method": (envelope(method=...), -32600),
    "an empty method": (envelope(method=""), -32600),
    "a number as method": (envelope(method=7), -32600),
    "an unknown method": (envelope(method="Frobnicate"), -32601),
    "a method of the rpc system": (envelope(method="rpc.discover"), None),
    "no version": (envelope(jsonrpc=...), -32600),
    "version 1.0": (envelope(jsonrpc="1.0"), -32600),
    "version 2.0 as a number": (envelope(jsonrpc=2.0), -32600),
    "params as a list": (envelope(params=[1]), -32602),
    "params as a string": (envelope(params="id"), -32600),
    "params as null": (envelope(params=None), -32602),
    "no params": (envelope(params=...), -32602),
    "an object as task id": (envelope(params={"id": {}}), -32602),
    "a number as task id": (envelope(params={"id": 7}), -32602),
}


@pytest.mark.parametrize(("body", "code"), ENVELOPES.values(), ids=ENVELOPES)
def test_an_odd_json_rpc_envelope_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, body: str, code: int | None
) -> None:
    answer = http.post(f"{served_fleet.url}/", content=body, headers=V1)

    assert answer.status_code == 200
    received_fault = from_rpc(answer.json())
    assert received_fault.status in ({code} if code else {-32600, -32601})
    assert answer.json()["id"] in (None, 7)


def test_responses_do_not_reveal_the_server(served_fleet: ServedFleet, http: httpx.Client) -> None:
    response = http.post(f"{served_fleet.url}/", content=envelope(method=...), headers=V1)

    assert "server" not in response.headers
    assert "set()" not in response.text
    assert "jsonrpc, method, params and id" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/tasks/", "/acme/tasks/", "/agents/echo/tasks/", "/agents/echo/acme/tasks/"])
@pytest.mark.parametrize(("host", "status"), [("elsewhere", 404), ("elsewhere.example", 403)])
def test_redirects_do_not_use_the_host_of_the_request(
    served_fleet: ServedFleet, http: httpx.Client, path: str, host: str, status: int
) -> None:
    answer = http.get(served_fleet.url + path, headers=V1 | {"Host": host})

    assert "location" not in answer.headers
    assert from_rest(answer).status == status


@pytest.mark.parametrize("path", ["/", "/message:send", "/agents/echo/message:send"])
def test_a_client_that_hangs_up_within_its_body_is_no_error(
    served_fleet: ServedFleet, http: httpx.Client, path: str
) -> None:
    size_before = len(served_fleet.gateway.output())
    host, _, port = served_fleet.url.rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf of it".encode())

    assert (
        http.get(f"{served_fleet.url}/health/live").status_code == 200
    )  # the gateway has handled the earlier requests
    assert "Traceback" not in served_fleet.gateway.output()[size_before:]


def test_a_clients_mistake_is_no_error_in_the_log(served_fleet: ServedFleet, http: httpx.Client) -> None:
    size_before = len(served_fleet.gateway.output())
    for body in (envelope(method=...), envelope(params={"id": {}}), envelope(method="tasks/get", params={"id": {}})):
        for version in ("1.0", "0.3"):
            assert (
                "error" in http.post(f"{served_fleet.url}/", content=body, headers=V1 | {"A2A-Version": version}).json()
            )

    output = served_fleet.gateway.output()[size_before:]
    assert "the input is invalid" in output
    assert "ERROR" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("request_id", [0, -1, 2**80, 1.5, "", "x" * 5_000, None, "\u4e2d"], ids=lambda i: str(i)[:10])
def test_a_lawful_id_comes_back(served_fleet: ServedFleet, http: httpx.Client, request_id: object) -> None:
    assert http.post(f"{served_fleet.url}/", content=envelope(id=request_id), headers=V1).json()["id"] == request_id


MESSAGES = {
    "parts is text": message(parts="hello"),
    "parts are numbers": message(parts=[1]),
    "a part is null": message(parts=[None]),
    "an id is a number": message(messageId=1),
    "the role is an object": message(role={}),
    "the role is unknown": message(role="ROLE_KING"),
    "the role is a large number": message(role=99),
    "the message is text": json.dumps({"message": "hello"}),
    "the message is a list": json.dumps({"message": []}),
    "the message is missing": "{}",
    "two contents": message(parts=[{"text": "a", "url": "b"}]),
    "an infinite number": message(parts=[{"data": 0}]).replace('"data": 0', '"data": 1e999'),
    "a number too large": message(metadata={"a": 10**400}),
    "metadata is a list": message(metadata=[1]),
    "deep metadata": message(metadata=json.loads('{"a":' * 90 + "1" + "}" * 90)),
    "a history length with a fraction": json.dumps(message_json() | {"configuration": {"historyLength": 1.5}}),
    "a history length too large": json.dumps(message_json() | {"configuration": {"historyLength": 2**40}}),
    "a history length in words": json.dumps(message_json() | {"configuration": {"historyLength": "all"}}),
}


@pytest.mark.parametrize("params", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
def test_a_message_of_the_wrong_shape_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, method: str, params: str
) -> None:
    body = f'{{"jsonrpc": "2.0", "id": 7, "method": "{method}", "params": {params}}}'
    path = "message:send" if method == "SendMessage" else "message:stream"

    over_rpc = http.post(f"{served_fleet.url}/", content=body, headers=V1)
    over_rest = http.post(f"{served_fleet.url}/{path}", content=params, headers=V1)

    assert from_rpc(over_rpc.json()).status in (-32602, -32700)
    assert from_rest(over_rest).status == 400


def test_odd_but_lawful_text_comes_through_unharmed(served_fleet: ServedFleet) -> None:
    text = "a\0b\u2028\U0001f600\r\n\x7f\ufeff\u202e" + "\\ud800" + '"{}'

    task = rest(served_fleet.gateway, "POST", "/message:send", message_json(text)).json()["task"]

    assert task["artifacts"][0]["parts"][0]["text"] == text
    assert rest(served_fleet.gateway, "GET", f"/tasks/{task['id']}").json() == task


def test_unusual_ids_are_distinct(served_fleet: ServedFleet) -> None:
    contexts = ["a\0b", "a", "{a}", "a:b", "*", "a b", "\u00e9"]
    for context_id in contexts:
        body = message_json(contextId=context_id, messageId="m" * 256)
        assert rest(served_fleet.gateway, "POST", "/message:send", body).status_code == 200

    for context_id in contexts:
        task_list = httpx.get(
            f"{served_fleet.url}/tasks", params={"contextId": context_id}, headers=V1, timeout=30
        ).json()
        assert [task["contextId"] for task in task_list["tasks"]] == [context_id]


LARGE = b'{"a": "' + b"x" * (2 * MAX_BYTES) + b'"}'


@pytest.mark.parametrize("path", ["/", "/message:send", "/message:stream", "/v1/message:send", "/agents/echo/"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, path: str, is_chunked: bool
) -> None:
    body = iter([LARGE[n : n + 10_000] for n in range(0, len(LARGE), 10_000)]) if is_chunked else LARGE

    answer = http.post(f"{served_fleet.url}{path}", content=body, headers=V1)

    received_fault = from_rpc(answer.json()) if path.endswith("/") else from_rest(answer)
    assert received_fault.reason == "REQUEST_TOO_LARGE"
    assert received_fault.status == (-32600 if path.endswith("/") else 413)
    assert str(MAX_BYTES) in received_fault.message


PATHS = [
    ("GET", "/nothing", 404),
    ("GET", "/nothing/at/all", 404),
    ("GET", "/agents/nobody/tasks", 404),
    ("GET", "/agents/nobody/.well-known/agent-card.json", 404),
    ("POST", "/agents/nobody/", 404),
    ("GET", "/" + "x" * 5_000, 404),
    ("GET", "/%00", 404),
    ("GET", "/../../etc/passwd", 404),
    ("PUT", "/message:send", 405),
    ("GET", "/message:send", 405),
    ("DELETE", "/tasks", 405),
    ("POST", "/tasks", 405),
    ("PROPFIND", "/tasks", 405),
    ("GET", "/tasks/%00", 404),
    ("GET", "/tasks/%ff%fe", 404),
    ("GET", "/tasks/" + "x" * 5_000, 400),
    ("GET", "/tasks?pageSize=many", 400),
    ("GET", "/tasks?pageSize=1e99", 400),
    ("GET", "/tasks?pageSize=", 400),
    ("GET", "/tasks?pageToken=%ff%00", 400),
    ("GET", "/tasks?statusTimestampAfter=yesterday", 400),
    ("GET", "/tasks?statusTimestampAfter=0000-00-00T00:00:00Z", 400),
    ("GET", "/tasks/x?historyLength=some", 400),
    ("GET", "/tasks/x?historyLength=99999999999999", 400),
    ("POST", "/tasks/x/pushNotificationConfigs", 400),
]


@pytest.mark.parametrize(("verb", "path", "status"), PATHS, ids=[f"{verb} {path[:40]}" for verb, path, _ in PATHS])
def test_an_odd_path_or_parameter_is_refused(
    served_fleet: ServedFleet, http: httpx.Client, verb: str, path: str, status: int
) -> None:
    answer = http.request(verb, f"{served_fleet.url}{path}", headers=V1)

    assert answer.status_code == status
    from_rest(answer)


@pytest.mark.parametrize("host", ["", "[::1", "a b", "a/b", "%", "x" * 2000, "\u00e9", "a:99999999", "<script>"])
def test_an_odd_host_breaks_nothing(served_fleet: ServedFleet, http: httpx.Client, host: str) -> None:
    headers = [(b"host", host.encode()), (b"a2a-version", b"1.0")]
    paths = ("/.well-known/agent-card.json", "/agents/full/extendedAgentCard", "/tasks")

    for path in paths:
        assert http.get(f"{served_fleet.url}{path}", headers=headers).status_code in (200, 400, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain; charset=utf-16"},
        {"Content-Type": "multipart/form-data"},
        {"A2A-Extensions": "," * 3_000},
        {"traceparent": "00-zz"},
        {"Content-Encoding": "gzip"},
    ],
    ids=str,
)
def test_odd_headers_break_nothing(served_fleet: ServedFleet, http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.post(f"{served_fleet.url}/", content=envelope(), headers=V1 | headers)

    assert answer.json()["error"]["code"] in KNOWN_RPC_CODES


async def test_odd_grpc_messages_are_refused(served_fleet: ServedFleet) -> None:
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        for method in ("SendMessage", "GetTask", "CancelTask", "SubscribeToTask", "Frobnicate"):
            make = channel.unary_stream if method == "SubscribeToTask" else channel.unary_unary
            for service in ("lf.a2a.v1", "a2a.v1"):
                for body in (b"", b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"x" * (2 * MAX_BYTES)):
                    version = GRPC_V1 if service == "lf.a2a.v1" else ()
                    call = make(f"/{service}.A2AService/{method}")(body, metadata=version, timeout=LIMIT)
                    code, text = await call.code(), await call.details()
                    assert code.name in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"), (method, body[:9])
                    assert "class" not in text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_json_has_no_words_for_are_refused_over_grpc(
    served_fleet: ServedFleet, number: float
) -> None:
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        send = a2a_pb2_grpc.A2AServiceStub(channel).SendMessage
        for place in ("data", "part", "message", "request"):
            request = ParseDict(message_json(), SendMessageRequest())
            match place:
                case "data":
                    request.message.parts.add().data.number_value = number
                case "part":
                    request.message.parts[0].metadata["x"] = number
                case "message":
                    request.message.metadata["x"] = number
                case _:
                    request.metadata["x"] = number

            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await send(request, metadata=GRPC_V1, timeout=LIMIT)

            assert list(from_grpc(exc_info.value).fields) == ["message"], place


def test_a_body_beyond_the_default_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with serve_fleet(tmp_path, pool=None, grpc=False) as served_fleet:
        large = b'{"a": "' + b"x" * (12 * 1024 * 1024) + b'"}'
        for path in ("/", "/message:send"):
            answer = httpx.post(f"{served_fleet.url}{path}", content=large, headers=V1, timeout=LIMIT)

            assert (from_rpc(answer.json()) if path == "/" else from_rest(answer)).reason == "REQUEST_TOO_LARGE"


def test_headers_have_an_end_and_it_is_the_client_s(served_fleet: ServedFleet, http: httpx.Client) -> None:
    answer = http.get(f"{served_fleet.url}/tasks/none", headers={**V1, "X-Long": "x" * 5_000_000})

    assert answer.status_code == 400


async def test_so_has_metadata(served_fleet: ServedFleet) -> None:
    async with grpc.aio.insecure_channel(served_fleet.gateway.grpc) as channel:
        call = a2a_pb2_grpc.A2AServiceStub(channel).GetTask(
            GetTaskRequest(id="none"), metadata=(("x-long", "x" * 100_000),), timeout=LIMIT
        )
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await call

    assert exc_info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_gateway_still_serves(served_fleet: ServedFleet) -> None:
    answer = rest(served_fleet.gateway, "POST", "/message:send", message_json("still there?"))

    assert answer.json()["task"]["artifacts"][0]["parts"] == [{"text": "still there?"}]


def test_every_push_operation_of_http_json_is_refused_whatever_it_asks(served_fleet: ServedFleet) -> None:
    path = "/tasks/nobody/pushNotificationConfigs"
    for verb, config_path, body in (("POST", path, {}), ("GET", path, None), ("DELETE", f"{path}/x", None)):
        details = rest(served_fleet.gateway, verb, config_path, body, agent="echo").json()["error"]["details"]
        assert details[0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"


def test_every_push_operation_of_json_rpc_is_refused_whatever_it_asks(served_fleet: ServedFleet) -> None:
    for method in ("Create", "Get", "Delete"):
        answer = rpc(served_fleet.gateway, f"{method}TaskPushNotificationConfig", {}, agent="echo")
        assert answer["error"]["code"] == -32003
    assert rpc(served_fleet.gateway, "ListTaskPushNotificationConfigs", {}, agent="echo")["error"]["code"] == -32003
