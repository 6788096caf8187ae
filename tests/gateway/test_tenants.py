"""Tenant of a message, in each place where a request may name it."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, V1, message_json
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.waiting import LIMIT


async def over_rest(gateway: LocalGateway, body: dict[str, Any]) -> str:
    answer = await gateway.http.post("/agents/echo/acme/message:send", json=body, headers=V1)
    return str(answer.json()["task"]["id"])


async def over_rpc(gateway: LocalGateway, body: dict[str, Any]) -> str:
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": body | {"tenant": "echo/acme"}}
    return str((await gateway.http.post("/", json=call, headers=V1)).json()["result"]["task"]["id"])


async def over_grpc(gateway: LocalGateway, body: dict[str, Any]) -> str:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        request = ParseDict(body | {"tenant": "echo/acme"}, SendMessageRequest())
        answer = await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=GRPC_V1, timeout=LIMIT)
        return str(answer.task.id)


@pytest.mark.parametrize("send", [over_rest, over_rpc, over_grpc])
async def test_a_run_gets_the_tenant_that_was_checked(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, send: Any
) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        task_id = await send(gateway, message_json() | {"configuration": {"returnImmediately": True}})

    record = await store.redis.hgetall(keys.task(task_id).record)
    assert record[b"scope"] == b"echo/acme/"
    assert SendMessageRequest.FromString(record[b"request"]).tenant == "acme"
