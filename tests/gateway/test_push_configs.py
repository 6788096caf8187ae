"""Responses of a gateway to push-notification configs. They reveal nothing about the host names in the gateway's
network."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients import V1, message_json
from tests.support.local_gateway import local_gateway


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
