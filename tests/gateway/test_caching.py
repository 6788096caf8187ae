"""Cache-Control of every route. A shared cache must not store what belongs to a caller."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

import pytest
from starlette.routing import BaseRoute, Mount, Route

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import KEY_OF_ANN, api_key_entry
from tests.support.processes.local_gateway import local_gateway

V1 = {"A2A-Version": "1.0"}
PROMPT = message_json() | {"configuration": {"returnImmediately": True}}
PRIVATE_KEY = "whsk_" + base64.b64encode(b"k" * 32).decode()
STORED = {
    "/.well-known/agent-card.json": "public, max-age=60",
    "/.well-known/jwks.json": "public, max-age=300",
    **dict.fromkeys(["/.well-known/ai-catalog.json", "/agents", "/openapi.json"], "private, max-age=60"),
}
"""Routes whose responses may be stored, by caches or only by the client, without the files of the operator's page."""


def requests_of(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield a method and a path for each method of each route."""
    for route in routes:
        if isinstance(route, Mount):
            yield from requests_of(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = re.sub(r"{[^}]*}", "none", prefix + route.path)
            yield from ((method, path) for method in sorted(route.methods or ()))


@pytest.mark.parametrize("credentials", [{}, KEY_OF_ANN], ids=["refused", "served"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_no_cache_stores_a_response(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, credentials: dict[str, str], version: str
) -> None:
    conf = {"ui": True, "operators": ["ann"], "secret_key": "0" * 32, "webhook_private_key": PRIVATE_KEY}
    conf["public_url"] = "https://agents.example.com"  # without it, only the client may store a card
    stored, paths = {}, set()
    async with local_gateway(
        store, redis_server.store_url, keys, auth_api_keys=api_key_entry("ann", "one"), **conf
    ) as gateway:
        for method, path in requests_of(gateway.routes):
            response = await gateway.http.request(
                method, path, headers={"A2A-Version": version} | credentials, json={} if method == "POST" else None
            )
            paths.add(path)
            if response.headers["cache-control"] != "no-store":
                stored[path] = response.headers["cache-control"]

    assert {"/tasks", "/agents/other/tasks/none", "/v1/tasks/none", "/", "/operator/v1/tasks"} <= paths
    pages = {path for path in stored if path == "/ui" or path.startswith("/ui/")}
    assert {path: rule for path, rule in stored.items() if path not in pages} == {
        path: rule for path in stored if (rule := STORED.get(re.sub("^/agents/[a-z]+", "", path)))
    }
    assert {path for path, rule in STORED.items() if credentials or rule.startswith("public")} <= set(stored)


async def test_no_cache_stores_a_task(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        task = await gateway.send_message()
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task["id"]}}
        responses = [
            await gateway.http.get(f"/tasks/{task['id']}", headers=V1),
            await gateway.http.get("/tasks", headers=V1),
            await gateway.http.get("/nothing", headers=V1),
            await gateway.http.post(
                "/message:send", json=message_json() | {"configuration": {"returnImmediately": True}}, headers=V1
            ),
            await gateway.http.post("/", json=rpc, headers=V1),
        ]

    assert [response.status_code for response in responses] == [200, 200, 404, 200, 200]
    assert {response.headers["cache-control"] for response in responses} == {"no-store"}
