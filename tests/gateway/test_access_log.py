"""Lines of the access log: the path as the client sent it, and the task of the request."""

from __future__ import annotations

import logging
import re

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.middleware.access_log import AccessLog
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import V1, message_json
from tests.support.processes.local_gateway import local_gateway
from tests.support.waiting import LIMIT

LOGGER = "a2a_celery.gateway.middleware.access_log"
RPC = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
IN_BACKGROUND = {"configuration": {"returnImmediately": True}}


async def test_a_line_has_the_path_as_sent_and_the_task(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    params = message_json() | IN_BACKGROUND
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        transport = httpx.ASGITransport(AccessLog(gateway.asgi))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=LIMIT, headers=V1) as http:
            rest = (await http.post("/message:send", json=params)).json()["task"]["id"]
            rpc = (await http.post("/", json=RPC | {"params": params})).json()["result"]["task"]["id"]
            await http.get(f"/tasks/{rest}?historyLength=0")
            await http.get("/no%3Asuch")

    lines = [re.sub(r"\d+ ms", "N ms", record.getMessage()) for record in caplog.records if record.name == LOGGER]
    assert lines == [
        f'127.0.0.1:123 - "POST /message:send HTTP/1.1" 200 N ms task {rest}',
        f'127.0.0.1:123 - "POST / HTTP/1.1" 200 N ms task {rpc}',
        f'127.0.0.1:123 - "GET /tasks/{rest}?historyLength=0 HTTP/1.1" 200 N ms task {rest}',
        '127.0.0.1:123 - "GET /no%3Asuch HTTP/1.1" 404 N ms',
    ]


async def test_a_failure_of_the_application_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)

    async def broken(scope: object, receive: object, send: object) -> None:
        raise RuntimeError

    async with httpx.AsyncClient(transport=httpx.ASGITransport(AccessLog(broken)), base_url="http://test") as http:
        with pytest.raises(RuntimeError):
            await http.get("/x")

    assert '"GET /x HTTP/1.1" 500 ' in caplog.text
