"""Requests with very many small values, which the gateway rejects before they use much memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import ListTasksRequest, Message, Part, Role, SendMessageRequest
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as Proto
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings.endpoints import ARRIVING, guard_rpc
from a2a_celery.gateway.bindings.grpc import count_fields
from a2a_celery.gateway.middleware import bodies
from a2a_celery.gateway.operations.limits import BYTES_PER_TOKEN, VALUES_PER_TOKEN
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.processes.local_gateway import local_gateway
from tests.support.waiting import LIMIT, eventually_async

ANN = f"ann:sha256:{sha256(b'key').hexdigest()}"
AS_ANN = {"A2A-Version": "1.0", "X-API-Key": "key"}
BOB = f"bob:sha256:{sha256(b'other key').hexdigest()}"
AS_BOB = {"A2A-Version": "1.0", "X-API-Key": "other key"}


async def rpc(request: Request) -> Response:
    return Response()


FEW = bodies.MAX_JSON_VALUES // 2
TEXT = 'a, [{\\"' * bodies.MAX_JSON_VALUES
TAKEN = {
    "a text of separators": f'["{TEXT}"]',
    "empty lists": "[" + ",".join(["[ ]"] * FEW) + "]",
    "the largest list": "[" + ",".join(["1"] * (bodies.MAX_JSON_VALUES - 1)) + "]",
}
TOO_MANY = {
    "numbers": "[" + ",".join(["1"] * (bodies.MAX_JSON_VALUES + 2)) + "]",
    "lists": "[" + ",".join(["[[]]"] * FEW) + "]",
    "members": "{" + ",".join(f'"{TEXT[:9]}{n}": {{}}' for n in range(bodies.MAX_JSON_VALUES + 2)) + "}",
    "nothing that ends": "[" * bodies.MAX_JSON_VALUES * 2,
}


@pytest.mark.parametrize("name", [*TAKEN, *TOO_MANY])
async def test_values_are_counted_before_they_are_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, is_taken = (TAKEN | TOO_MANY)[name], name in TAKEN
    sizes: list[int] = []
    parser = SimpleNamespace(loads=lambda text, **_: sizes.append(len(text)), dumps=json.dumps)
    monkeypatch.setattr(bodies, "json", parser)
    transport = httpx.ASGITransport(Starlette(routes=[Route("/", guard_rpc(rpc, 1 << 23), methods=["POST"])]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post("/", content=body, headers={"Content-Type": "application/json"})

    assert (sizes == [len(body)]) == is_taken
    assert (f"more than {bodies.MAX_JSON_VALUES} values" in response.text) != is_taken


@pytest.mark.parametrize("levels", [bodies.MAX_JSON_DEPTH, bodies.MAX_JSON_DEPTH + 1])
async def test_a_body_may_be_nested_up_to_its_maximum_depth(levels: int) -> None:
    body, is_taken = "[" * levels + "1" + "]" * levels, levels == bodies.MAX_JSON_DEPTH
    transport = httpx.ASGITransport(Starlette(routes=[Route("/", guard_rpc(rpc, 1 << 23), methods=["POST"])]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post("/", content=body, headers={"Content-Type": "application/json"})

    assert ("nested more than 100 levels deep" in response.text) != is_taken


def nested_request(depth: int) -> dict[str, Any]:
    """Return a request whose data part has `depth` nested lists."""
    data: Any = 1
    for _ in range(depth):
        data = [data]
    return {"message": {"messageId": "m", "parts": [{"data": data}, {"text": "a"}, {"url": "b"}]}}


def fields_of(message: Proto) -> int:
    """Return the number of fields in the encoded `message`, counted by protobuf."""
    count = 0
    for field, value in message.ListFields():
        values = [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            count += 2 * len(value)  # the key and the value of an entry
            values = [value[key] for key in value]
        elif not isinstance(value, Proto | str | bytes) and hasattr(value, "__len__"):
            values = list(value)
        count += len(values)
        count += sum(fields_of(inner) for inner in values if isinstance(inner, Proto))
    return count


@pytest.mark.parametrize(
    "request_",
    [
        ParseDict(nested_request(30), SendMessageRequest()),
        ParseDict({"message": {"metadata": {"a": 1, "b": ["x", None, True], "c": {}}}}, SendMessageRequest()),
        SendMessageRequest(message=Message(parts=[Part()] * 1000)),
        SendMessageRequest(message=Message(reference_task_ids=["t"] * 10)),
    ],
    ids=["nested", "maps", "many", "texts"],
)
def test_fields_are_counted_as_protobuf_has_them(request_: SendMessageRequest) -> None:
    body, fields = request_.SerializeToString(), fields_of(request_)

    assert count_fields(body, SendMessageRequest.DESCRIPTOR, fields) == fields
    assert count_fields(body, SendMessageRequest.DESCRIPTOR, fields - 2) == fields - 1


def test_unknown_fields_are_counted_too() -> None:
    unknown_field = b"\x98\x06\x01"  # number 99

    assert count_fields(unknown_field * 1000, SendMessageRequest.DESCRIPTOR, 10_000) == 1000


MANY = b"\x0a\x00" * 1000
"""Encoded field with many empty messages."""

NOT_WELL_FORMED = {
    "ends within a length": b"\x0a",
    "ends within a field": b"\x0a\xff",
    "endless number": b"\xff" * 20,
    "group": b"\x0b" + b"\x0a\x01\x80" + b"\x0c",
    "unknown wire type": b"\x0f",
    "longer than the body": b"\x09\x00",
    "longer than its message": b"\x0a\x02\x12\x05" + b"abcde",
}


@pytest.mark.parametrize("end", NOT_WELL_FORMED.values(), ids=list(NOT_WELL_FORMED))
def test_nothing_in_front_of_an_error_is_parsed(end: bytes) -> None:
    assert count_fields(MANY + end, SendMessageRequest.DESCRIPTOR, 10_000) == 10_001
    assert count_fields(MANY, SendMessageRequest.DESCRIPTOR, 10_000) == 1000


def values(tokens: int) -> list[int]:
    """Return a list whose values cost `tokens` tokens in addition to the token of the request."""
    return [0] * (tokens * VALUES_PER_TOKEN + 1)


@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_the_values_of_a_body_take_tokens_before_they_are_parsed(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str
) -> None:
    limit_settings = {"owner_requests_per_second": 0.1, "owner_request_burst": 10, "auth_api_keys": (ANN,)}
    params = message_json() | {"metadata": {"values": values(4)}, "configuration": {"returnImmediately": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params} if path == "/" else params
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        answers = [await gateway.http.post(path, json=body, headers=AS_ANN) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429], "five tokens each"
    assert int(answers[2].headers["retry-after"]) > 30
    assert answers[2].json()["error"]["message"].startswith("The rate limit of requests is reached")


async def test_the_bytes_of_a_body_take_tokens(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> None:
    limit_settings = {"owner_requests_per_second": 0.1, "owner_request_burst": 10, "auth_api_keys": (ANN,)}
    configuration = {"returnImmediately": True, "historyLength": 0}
    body = message_json("x" * 4 * BYTES_PER_TOKEN) | {"configuration": configuration}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        answers = [await gateway.http.post("/message:send", json=body, headers=AS_ANN) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429], "five tokens each"


@pytest.mark.parametrize("path", ["/", "/message:send"])
@pytest.mark.parametrize(
    "length_header", [{"Content-Length": str(6 * BYTES_PER_TOKEN)}, {}], ids=["declared", "chunked"]
)
async def test_a_body_that_is_too_expensive_is_refused_before_it_is_read(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str, length_header: dict[str, str]
) -> None:
    most = {"owner_requests_per_second": 0.01, "owner_request_burst": 5, "auth_api_keys": (ANN,)}
    never = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        yield b" " * 3 * BYTES_PER_TOKEN
        await never.wait()

    async with local_gateway(store, redis_server.store_url, keys, **most) as gateway:
        assert (await gateway.http.get("/tasks", headers=AS_ANN)).status_code == 200, "four of five tokens are left"
        headers = AS_ANN | length_header | {"Content-Type": "application/json"}
        response = await gateway.http.post(path, content=endless(), headers=headers)

    assert (response.status_code, response.json()["error"]["message"][:14]) == (429, "The rate limit")


async def test_a_body_that_is_too_expensive_leaves_its_caller_the_tokens_it_has(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    limit_settings = {"owner_requests_per_second": 0.1, "owner_request_burst": 10, "auth_api_keys": (ANN,)}
    body = message_json() | {"metadata": {"values": values(6)}, "configuration": {"returnImmediately": True}}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        answers = [await gateway.http.post("/message:send", json=body, headers=AS_ANN) for _ in range(2)]
        small_response = await gateway.http.get("/tasks", headers=AS_ANN)

    assert [answer.status_code for answer in answers] == [200, 429], "seven tokens, then three are left"
    assert small_response.status_code == 200


async def test_a_body_is_not_charged_if_no_token_is_left_for_its_operation(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    limit_settings = {"owner_requests_per_second": 0.01, "owner_request_burst": 5, "auth_api_keys": (ANN,)}
    body = message_json() | {"metadata": {"values": values(4)}, "configuration": {"returnImmediately": True}}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        assert (await gateway.http.get("/tasks", headers=AS_ANN)).status_code == 200, "four of five tokens are left"
        expensive = await gateway.http.post("/message:send", json=body, headers=AS_ANN)
        small_statuses = [(await gateway.http.get("/tasks", headers=AS_ANN)).status_code for _ in range(5)]

    assert (expensive.status_code, small_statuses) == (429, [200] * 4 + [429])


async def test_a_body_that_costs_more_than_the_burst_leaves_a_debt(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    limit_settings = {"owner_requests_per_second": 0.2, "owner_request_burst": 3, "auth_api_keys": (ANN,)}
    body = message_json() | {"metadata": {"values": values(8)}, "configuration": {"returnImmediately": True}}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        accepted = await gateway.http.post("/message:send", json=body, headers=AS_ANN)
        refused = await gateway.http.get("/tasks", headers=AS_ANN)

    assert (accepted.status_code, refused.status_code) == (200, 429)
    assert 20 < int(refused.headers["retry-after"]) <= 35, "seven tokens are missing"


async def test_over_grpc_too_a_body_that_costs_more_than_the_burst_leaves_a_debt(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    limit_settings = {"owner_requests_per_second": 0.2, "owner_request_burst": 3, "auth_api_keys": (ANN,)}
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x" * 8 * BYTES_PER_TOKEN)])
    request = SendMessageRequest(message=message, tenant="echo")
    request.configuration.return_immediately = True
    request.configuration.history_length = 0
    metadata = (*GRPC_V1, ("x-api-key", "key"))
    async with (
        local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        stub = A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.SendMessage(request, metadata=metadata, timeout=LIMIT)
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await stub.ListTasks(ListTasksRequest(tenant="echo"), metadata=metadata, timeout=LIMIT)

    assert exc_info.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(exc_info.value.trailing_metadata() or ())
    assert 20 < int(trailers["retry-after"]) <= 35, "seven tokens are missing"


@pytest.mark.parametrize(
    ("bodies", "token_count"), [([b"\x0a\xff"] * 3, 2), ([b"\x0a\x00" * 500_001] * 3, 1)], ids=["small", "large"]
)
async def test_over_grpc_too_a_message_refused_before_parsing_costs_a_token(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, bodies: list[bytes], token_count: int
) -> None:
    limit_settings = {"owner_requests_per_second": 0.01, "owner_request_burst": 2, "auth_api_keys": (ANN,)}
    metadata = (*GRPC_V1, ("x-api-key", "key"))
    codes = []
    async with (
        local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        send: Any = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        for body in bodies:
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await send(body, metadata=metadata, timeout=LIMIT)
            codes.append(exc_info.value.code().name)

    assert codes == ["INVALID_ARGUMENT"] * token_count + ["RESOURCE_EXHAUSTED"] * (3 - token_count), (
        "bytes take tokens, too"
    )


async def test_over_grpc_a_rejected_caller_is_rejected_before_its_next_request_is_read(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    limit_settings = {"owner_requests_per_second": 0.01, "owner_request_burst": 1, "auth_api_keys": (ANN,)}
    metadata, never = (*GRPC_V1, ("x-api-key", "key")), asyncio.Event()

    async def no_request() -> AsyncGenerator[bytes, None]:
        await never.wait()
        yield b""

    async with (
        local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        send: Any = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await send(b"\x0a\xff", metadata=metadata, timeout=LIMIT)
        open_call: Any = channel.stream_unary("/lf.a2a.v1.A2AService/SendMessage")
        call = open_call(no_request(), metadata=metadata, timeout=LIMIT)

        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_bodies_of_one_owner_that_arrive_at_once_are_bounded(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str
) -> None:
    params = message_json() | {"configuration": {"returnImmediately": True, "historyLength": 0}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params} if path == "/" else params
    content, may_end, starts = json.dumps(body).encode(), asyncio.Event(), list[int]()

    async def slow() -> AsyncGenerator[bytes, None]:
        yield b" " * 1_000_000
        starts.append(1)
        await may_end.wait()
        yield content

    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=(ANN, BOB)) as gateway:

        def post(body: bytes | AsyncGenerator[bytes, None], headers: dict[str, str]) -> asyncio.Task[httpx.Response]:
            call = gateway.http.post(path, content=body, headers=headers | {"Content-Type": "application/json"})
            return asyncio.create_task(call)

        async def have_begun() -> bool:
            return len(starts) == 2

        with ARRIVING.one_of("ann") as count:  # another body of Ann
            count(bodies.MAX_OWNER_BODY_BYTES + bodies.FREE_BODY_BYTES - 2_000_000)
            arriving = [post(slow(), AS_ANN) for _ in range(2)]
            await eventually_async(have_begun, what="two bodies have begun")
            refusal = await post(b" " * 1_000_000 + content, AS_ANN)
            small_response, bob_response = await post(content, AS_ANN), await post(b" " * 2_600_000 + content, AS_BOB)
            may_end.set()
            responses = await asyncio.gather(*arriving)
            later_response = await post(b" " * 2_000_000 + content, AS_ANN)

    assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "5")
    details = refusal.json()["error"]["data" if path == "/" else "details"]
    assert details[0]["metadata"] == {"limit": "bodies", "retryAfter": "5"}
    assert [response.status_code for response in (small_response, bob_response, *responses, later_response)] == [
        200
    ] * 5


def test_a_single_body_may_be_larger_than_all_bodies_of_an_owner_together() -> None:
    arriving = bodies.ArrivingBodies()

    with arriving.one_of("ann") as count:
        for size in (1, 2 * bodies.MAX_OWNER_BODY_BYTES):
            count(size)
    with arriving.one_of("ann") as count:
        count(2 * bodies.MAX_OWNER_BODY_BYTES)
