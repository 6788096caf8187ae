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
from a2a.types import Message, Part, SendMessageRequest
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as Proto
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings.endpoints import rpc_body_error
from a2a_celery.gateway.bindings.grpc import count_fields
from a2a_celery.gateway.gate import MAX_ARRIVING_BYTES, Gate
from a2a_celery.gateway.metrics import Metrics
from a2a_celery.gateway.middleware import bodies
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.processes.local_gateway import local_gateway
from tests.support.waiting import LIMIT, eventually_async

ANN = f"ann:sha256:{sha256(b'key').hexdigest()}"
AS_ANN = {"A2A-Version": "1.0", "X-API-Key": "key"}
BOB = f"bob:sha256:{sha256(b'other key').hexdigest()}"
AS_BOB = {"A2A-Version": "1.0", "X-API-Key": "other key"}


async def parse(request: Request) -> Response:
    """Parse the body of `request`, and return the error of an invalid body."""
    try:
        await bodies.require_json(request, 1 << 23)
    except A2AError as e:
        return rpc_body_error(e)
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
    transport = httpx.ASGITransport(Starlette(routes=[Route("/", parse, methods=["POST"])]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post("/", content=body, headers={"Content-Type": "application/json"})

    assert (sizes == [len(body)]) == is_taken
    assert (f"more than {bodies.MAX_JSON_VALUES} values" in response.text) != is_taken


@pytest.mark.parametrize("levels", [bodies.MAX_JSON_DEPTH, bodies.MAX_JSON_DEPTH + 1])
async def test_a_body_may_be_nested_up_to_its_maximum_depth(levels: int) -> None:
    body, is_taken = "[" * levels + "1" + "]" * levels, levels == bodies.MAX_JSON_DEPTH
    transport = httpx.ASGITransport(Starlette(routes=[Route("/", parse, methods=["POST"])]))
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


@pytest.mark.parametrize("first", [b"\x0a\xff", b"\x0a\x00" * 500_001], ids=["small", "large"])
async def test_over_grpc_too_a_message_refused_before_parsing_costs_a_token(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, first: bytes
) -> None:
    limit_settings = {"owner_requests_per_second": 0.01, "owner_request_burst": 2, "auth_api_keys": (ANN,)}
    metadata = (*GRPC_V1, ("x-api-key", "key"))
    codes = []
    async with (
        local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        send: Any = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        for body in (first, b"\x0a\xff", b"\x0a\xff"):
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await send(body, metadata=metadata, timeout=LIMIT)
            codes.append(exc_info.value.code().name)

    assert codes == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"]


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

    async def slow(size: int) -> AsyncGenerator[bytes, None]:
        yield b" " * size
        starts.append(size)
        await may_end.wait()
        yield content

    sizes = {"auth_api_keys": (ANN, BOB), "max_request_bytes": 2 * MAX_ARRIVING_BYTES}
    async with local_gateway(store, redis_server.store_url, keys, **sizes) as gateway:

        def post(body: bytes | AsyncGenerator[bytes, None], headers: dict[str, str]) -> asyncio.Task[httpx.Response]:
            call = gateway.http.post(path, content=body, headers=headers | {"Content-Type": "application/json"})
            return asyncio.create_task(call)

        async def have_begun() -> bool:
            return len(starts) == 3

        arriving = [post(slow(size), AS_ANN) for size in (MAX_ARRIVING_BYTES - 2_000_000, 1_000_000, 1_000_000)]
        await eventually_async(have_begun, what="three bodies have begun")
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
    ] * 6


async def test_a_single_body_may_be_larger_than_all_bodies_of_an_owner_together(store: AsyncStore, keys: Keys) -> None:
    gate = Gate(Settings(), store, keys, [], Metrics(store, keys, {}))

    with gate.arriving_body("echo", "ann") as count:
        for size in (1, 2 * MAX_ARRIVING_BYTES):
            count(size)
    with gate.arriving_body("echo", "ann") as count:
        count(2 * MAX_ARRIVING_BYTES)
