"""Clients that do not read their responses. The memory of these responses must not delay other clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.middleware.bodies import SEND_TIMEOUT
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.blobs import blob_store
from a2a_celery.store.blobs.blob_store import MemoryBudget
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.clocks import ManualClock
from tests.support.processes.local_gateway import local_gateway
from tests.support.waiting import eventually_async

LARGE = 9_500_000
"""Bytes of a text that the buffers of a connection cannot hold."""


@pytest.fixture
def clock() -> ManualClock:
    """Clock of the gateway."""
    return ManualClock()


@pytest.fixture
async def http(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a gateway whose memory budget holds one large response."""
    monkeypatch.setattr(blob_store, "MemoryBudget", partial(MemoryBudget, LARGE + LARGE // 100, timeout=2.0))
    api_keys = [api_key_entry(owner, owner) for owner in ("ann", "bob")]
    async with (
        local_gateway(store, redis_server.store_url, keys, clock, auth_api_keys=api_keys) as gateway,
        gateway.serve() as http,
    ):
        yield http


def headers(owner: str) -> dict[str, str]:
    return {"A2A-Version": "1.0", "X-API-Key": owner}


async def create_task(http: httpx.AsyncClient, owner: str, size: int) -> str:
    """Send a message of `size` bytes, and return the path of its task."""
    body = message_json()
    body["message"]["parts"] = [{"text": "x" * size}]
    body["configuration"] = {"returnImmediately": True, "historyLength": 0}
    answer = await http.post("/message:send", json=body, headers=headers(owner))
    assert answer.status_code == 200, answer.text
    return f"/tasks/{answer.json()['task']['id']}"


@asynccontextmanager
async def unread_response(http: httpx.AsyncClient, owner: str, path: str) -> AsyncIterator[None]:
    """Request `path`, and read only the beginning of the response."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port, limit=1024)
    lines = [f"GET {path} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers(owner).items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert await reader.readexactly(12) == b"HTTP/1.1 200"
    try:
        yield
    finally:
        writer.transport.abort()


async def test_a_client_that_does_not_read_its_response_does_not_delay_other_owners(http: httpx.AsyncClient) -> None:
    large, other = await create_task(http, "ann", LARGE), await create_task(http, "bob", 1_000_000)

    async with unread_response(http, "ann", large):
        answer = await http.get(other, headers=headers("bob"))

    assert answer.status_code == 200, answer.text


async def test_a_response_that_its_client_does_not_read_is_cut(
    http: httpx.AsyncClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_cut() -> bool:
        clock.advance(SEND_TIMEOUT)
        return "its client did not receive it in time" in caplog.text

    caplog.set_level(logging.INFO)
    large = await create_task(http, "ann", LARGE)

    async with unread_response(http, "ann", large):
        await eventually_async(is_cut, what="the response is cut")
        answer = await http.get(large, headers=headers("ann"))

    assert answer.status_code == 200, answer.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
