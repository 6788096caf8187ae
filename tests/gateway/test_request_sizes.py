"""Sizes of requests: long names, messages with many values, packed messages, and bodies where none is expected."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.clients.faults import from_grpc
from tests.support.processes.local_gateway import local_gateway
from tests.support.store.seeds import Seeds
from tests.support.waiting import LIMIT


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


LONG = "x" * 257


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", f"/tasks/{LONG}", "id"),
        ("POST", f"/tasks/{LONG}:cancel", "id"),
        ("POST", f"/tasks/{LONG}:subscribe", "id"),
        ("GET", f"/tasks?contextId={LONG}", "context_id"),
        ("GET", f"/tasks?pageToken={LONG * 4}", "page_token"),
        ("GET", f"/agents/echo/{LONG}/tasks", "tenant"),
        ("GET", f"/tasks/{LONG}/pushNotificationConfigs", "task_id"),
        ("GET", f"/tasks/t/pushNotificationConfigs/{LONG}", "id"),
    ],
)
async def test_a_name_that_is_too_long_is_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, method: str, path: str, field: str
) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        answer = await gateway.http.request(method, path, headers={"A2A-Version": "1.0"})

    assert answer.status_code == 400
    [violation] = answer.json()["error"]["details"][1]["fieldViolations"]
    assert violation["field"] == field
    assert violation["description"].startswith("At most ")


@pytest.mark.parametrize(
    "many",
    [
        {"parts": [{"text": ""}] * 20_001},
        {"parts": [{"text": "x"}], "extensions": ["x"] * 20_001},
        {"parts": [{"text": "x", "metadata": {"x": [0] * 20_001}}]},
        {"parts": [{"text": "x"}], "metadata": {str(n): 0 for n in range(20_001)}},
    ],
    ids=["parts", "extensions", "values", "keys"],
)
async def test_over_grpc_too_a_message_has_an_end(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, many: dict[str, Any]
) -> None:
    request = ParseDict(message_json(**many), SendMessageRequest())
    async with (
        local_gateway(store, redis_server.store_url, keys) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=GRPC_V1, timeout=LIMIT)

    assert list(from_grpc(exc_info.value).fields) == ["message.parts"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_message_packed_small_is_measured_unpacked(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, version: str
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, max_request_bytes=100_000) as gateway:
        data_before = await seeds.all_values()
        refusal = await gateway.refusal("GRPC", version, "SendMessage", message_json("x" * 200_000), is_compressed=True)

        assert refusal.status == "RESOURCE_EXHAUSTED"
        assert await seeds.all_values() == data_before


BODIES = [
    ("GET", "/tasks/none:subscribe"),
    ("GET", "/acme/tasks/none:subscribe"),
    ("GET", "/v1/tasks/none:subscribe"),
    ("DELETE", "/tasks/none/pushNotificationConfigs/none"),
]


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_an_unexpected_body_is_limited_too(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, method: str, path: str
) -> None:
    byte_count = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal byte_count
        while byte_count < 100:
            byte_count += 1
            yield b"x" * 10_000

    async with local_gateway(store, redis_server.store_url, keys, max_request_bytes=100_000) as gateway:
        version = "0.3" if path.startswith("/v1") else "1.0"
        answer = await gateway.http.request(method, path, content=endless(), headers={"A2A-Version": version})

    assert answer.status_code == 413
    assert byte_count == 11, "what is beyond is not read"
