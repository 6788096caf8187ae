"""Responses of a gateway to push-notification configs. They reveal nothing about the host names in the gateway's
network."""

from __future__ import annotations

import logging
import socket
from typing import Any

import grpc.aio
import pytest
from a2a.types import ListTaskPushNotificationConfigsRequest, a2a_pb2_grpc

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, V1, message_json
from tests.support.clients.faults import from_grpc, from_rest, from_rpc
from tests.support.processes.local_gateway import local_gateway
from tests.support.waiting import LIMIT

V03 = {"A2A-Version": "0.3"}


@pytest.mark.parametrize("address", ["10.0.0.1", "8.8.8.8", None])
async def test_the_answer_is_no_oracle_for_names_of_the_network(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    looked_up = []
    getaddrinfo = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **options: Any) -> Any:
        if host not in ("vault.internal", b"vault.internal"):
            return getaddrinfo(host, *rest, **options)
        looked_up.append(host)
        if address is None:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with local_gateway(store, redis_server.store_url, keys, secret_key="s" * 32) as gateway:
        hook = {"taskPushNotificationConfig": {"url": "https://vault.internal/"}, "returnImmediately": True}
        response = await gateway.http.post("/message:send", json=message_json() | {"configuration": hook}, headers=V1)
        assert response.status_code == 200, response.text
        task_id = response.json()["task"]["id"]
        path, body = f"/tasks/{task_id}/pushNotificationConfigs", {"url": "https://vault.internal/", "id": "other"}
        second_response = await gateway.http.post(path, json=body, headers=V1)

    assert (second_response.status_code, looked_up) == (200, [])


@pytest.mark.parametrize("token", ["garbage", "after:", "eyJ0cyI6MSwiaWQiOiJ4In0"])
async def test_a_page_token_of_another_origin_is_refused_in_every_binding(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, token: str
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, secret_key="s" * 32) as gateway:
        task_id = (await gateway.send_message())["id"]
        params = {"taskId": task_id, "pageToken": token}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTaskPushNotificationConfigs", "params": params}
        path = f"/tasks/{task_id}/pushNotificationConfigs?pageToken={token}"
        faults = [
            from_rest(await gateway.http.get(path, headers=V1)),
            from_rpc((await gateway.http.post("/", json=body, headers=V1)).json()),
        ]
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            request = ListTaskPushNotificationConfigsRequest(task_id=task_id, page_token=token)
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await a2a_pb2_grpc.A2AServiceStub(channel).ListTaskPushNotificationConfigs(
                    request, metadata=GRPC_V1, timeout=LIMIT
                )
        faults.append(from_grpc(exc_info.value))

    assert [(fault.reason, list(fault.fields)) for fault in faults] == [("INVALID_PARAMS", ["page_token"])] * 3


async def test_a_client_of_version_0_3_creates_and_deletes_a_config_over_http(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    hook = {"id": "mine", "url": "https://example.com/"}
    async with local_gateway(store, redis_server.store_url, keys, secret_key="s" * 32) as gateway:
        task_id = (await gateway.send_message())["id"]
        configs = f"/v1/tasks/{task_id}/pushNotificationConfigs"
        body = {"config": {"taskId": task_id, "pushNotificationConfig": hook | {"authentication": {}}}}
        creation = await gateway.http.post(configs, json=body, headers=V03)
        deletion = await gateway.http.delete(f"{configs}/mine", headers=V03)
        remaining = await gateway.http.get(configs, headers=V03)
        other = await gateway.http.delete("/v1/tasks/none/pushNotificationConfigs/mine", headers=V03)

    name = f"tasks/{task_id}/pushNotificationConfigs/mine"
    assert creation.json() == {"name": name, "pushNotificationConfig": hook}
    assert (deletion.status_code, deletion.json(), remaining.json()) == (200, {}, {})
    assert (other.status_code, from_rest(other).reason) == (404, "TASK_NOT_FOUND")


async def test_the_operator_learns_which_setting_allows_a_private_webhook(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hook = {"taskPushNotificationConfig": {"url": "https://10.1.2.3/secret-path"}, "returnImmediately": True}
    async with local_gateway(store, redis_server.store_url, keys, secret_key="s" * 32) as gateway:
        response = await gateway.http.post("/message:send", json=message_json() | {"configuration": hook}, headers=V1)

    assert response.status_code == 400
    assert "a2a_allow_networks" not in response.text
    [line] = [record.getMessage() for record in caplog.records if "webhook" in record.getMessage()]
    assert line == (
        "a webhook of a caller without credentials was refused: 10.1.2.3 is not a public address. To allow it, add its "
        "network to a2a_allow_networks."
    )
