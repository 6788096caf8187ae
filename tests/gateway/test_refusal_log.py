"""Log lines and the counter of requests that are refused because of their caller."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import Any

import grpc.aio
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.cli.serve.gateway import INVALID_REQUEST, InvalidRequestFilter
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.telemetry.logs import ABOUT, LINES_PER_SECOND
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.clocks import ManualClock
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.waiting import LIMIT

ANN = f"ann:sha256:{sha256(b'key').hexdigest()}"
WRONG_KEY = {"A2A-Version": "1.0", "X-API-Key": "wrong"}


async def refuse(gateway: LocalGateway, path: str, headers: dict[str, str] = WRONG_KEY) -> None:
    response = await gateway.http.get(path, headers=headers)
    assert response.status_code in (401, 403)


def refusal_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if fields_of(record).get("action") == "request.refused"]


def refusal_levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if fields_of(record).get("action") == "request.refused"]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, ABOUT, {})


async def test_a_line_names_the_address_the_path_and_the_agent(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=(ANN,)) as gateway:
        await refuse(gateway, "/agents/echo/tasks?token=secret")

    [line] = refusal_lines(caplog)
    assert line == "a request was refused: an unknown API key (GET /agents/echo/tasks from 127.0.0.1 over http)"
    [record] = [record for record in caplog.records if record.getMessage() == line]
    assert fields_of(record) == {
        "action": "request.refused",
        "reason": "api_key",
        "client": "127.0.0.1",
        "method": "GET",
        "path": "/agents/echo/tasks",
        "scheme": "http",
        "agent": "echo",
    }


async def test_a_path_cannot_forge_a_line(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=(ANN,)) as gateway:
        await refuse(gateway, "/agents/a%0Ab/tasks")
        await refuse(gateway, "/" + "x" * 5000)

    lines = refusal_lines(caplog)
    assert "(GET /agents/a%0Ab/tasks from" in lines[0]
    assert len(lines[1]) < 500


async def test_many_refusals_write_few_lines_and_are_all_counted(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    async with local_gateway(store, redis_server.store_url, keys, clock, auth_api_keys=(ANN,)) as gateway:
        for _ in range(LINES_PER_SECOND + 5):
            await refuse(gateway, "/tasks")
        await refuse(gateway, "/tasks", {"A2A-Version": "1.0"})
        lines, first_levels = refusal_lines(caplog), refusal_levels(caplog)
        caplog.clear()
        clock.advance(1)
        await refuse(gateway, "/tasks")
        metrics = (await gateway.http.get("/metrics", headers={"X-API-Key": "key"})).text

    assert len(lines) == LINES_PER_SECOND + 1
    assert first_levels == [logging.INFO] * (LINES_PER_SECOND - 1) + [logging.WARNING, logging.INFO]
    assert refusal_levels(caplog) == [logging.WARNING, logging.INFO]
    assert "no credentials" in lines[-1], "other reasons have their own lines"
    assert refusal_lines(caplog)[0] == "5 more requests were refused: an unknown API key"
    assert len(refusal_lines(caplog)) == 2
    assert f'a2a_gateway_refused_callers_total{{reason="api_key"}} {LINES_PER_SECOND + 6}.0' in metrics
    assert 'a2a_gateway_refused_callers_total{reason="missing"} 1.0' in metrics


async def test_requests_of_other_pages_are_logged_alike(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        for _ in range(LINES_PER_SECOND + 5):
            await refuse(gateway, "/agents/echo/tasks", {"Host": "evil.example"})
        metrics = (await gateway.http.get("/metrics")).text

    lines = refusal_lines(caplog)
    assert len(lines) == LINES_PER_SECOND
    assert lines[0].endswith("(GET /agents/echo/tasks from 127.0.0.1 over http, host 'evil.example')")
    assert f'a2a_gateway_refused_callers_total{{reason="other_host"}} {LINES_PER_SECOND + 5}.0' in metrics


async def test_a_line_shows_the_path_as_the_client_sent_it(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=(ANN,)) as gateway:
        await gateway.http.post("/agents/echo/message:send", json={}, headers=WRONG_KEY)
        await gateway.http.post("/agents/echo/message%3Asend", json={}, headers=WRONG_KEY)

    assert "(POST /agents/echo/message:send from" in refusal_lines(caplog)[0]
    assert "(POST /agents/echo/message%3Asend from" in refusal_lines(caplog)[1]


BOB = api_key_entry("bob", "bob-key", "acme")
BOBS_KEY = {"A2A-Version": "1.0", "X-API-Key": "bob-key"}
NO_TENANT = "a request was refused: Not permitted in this tenant: use a tenant that your credentials allow"


async def test_a_tenant_that_the_credentials_do_not_allow_is_logged_in_each_binding(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message_json()}
    metadata = (*GRPC_V1, ("x-api-key", "bob-key"))
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=(BOB,)) as gateway:
        await gateway.http.post("/agents/echo/other/message:send", json=message_json(), headers=BOBS_KEY)
        await gateway.http.post("/agents/echo/other/message:stream", json=message_json(), headers=BOBS_KEY)
        await gateway.http.post("/", json=call, headers=BOBS_KEY)
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            request = ParseDict(message_json() | {"tenant": "echo/other"}, SendMessageRequest())
            with pytest.raises(grpc.aio.AioRpcError):
                await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=metadata, timeout=LIMIT)
        metrics = (await gateway.http.get("/metrics", headers=BOBS_KEY)).text

    assert refusal_lines(caplog) == [
        f"{NO_TENANT} ({request} from 127.0.0.1 over {scheme}, owner 'bob')"
        for request, scheme in (
            ("POST /agents/echo/other/message:send", "http"),
            ("POST /agents/echo/other/message:stream", "http"),
            ("POST /", "http"),
            ("/lf.a2a.v1.A2AService/SendMessage", "grpc"),
        )
    ]
    [*_, last] = [fields for record in caplog.records if (fields := fields_of(record)).get("reason") == "tenant"]
    assert (last["owner"], last["agent"], last["scheme"]) == ("bob", "echo", "grpc")
    assert 'a2a_gateway_refused_callers_total{reason="tenant"} 4.0' in metrics


async def test_a_caller_without_the_operators_role_is_logged(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings: dict[str, Any] = {"auth_api_keys": (BOB,), "operators": ["ann"], "ui": True}
    async with local_gateway(store, redis_server.store_url, keys, **settings) as gateway:
        await refuse(gateway, "/operator/v1/overview", BOBS_KEY)
        await refuse(gateway, "/ui/inbox.json", BOBS_KEY)

    assert refusal_lines(caplog) == [
        "a request was refused: The operator's role is required, and the owner 'bob' is not in a2a_operators "
        "(GET /operator/v1/overview from 127.0.0.1 over http, owner 'bob')",
        f"{NO_TENANT} (GET /ui/inbox.json from 127.0.0.1 over http, owner 'bob')",
    ]


async def test_a_refused_origin_is_named(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    origin = "https://evil.example"
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    async with local_gateway(store, redis_server.store_url, keys, cors_origins=["https://a.example"]) as gateway:
        await gateway.http.post("/agents/echo/", json={}, headers={"Origin": origin})
        await gateway.http.post("/agents/echo/", json={}, headers={"Origin": "x" * 5000})
        assert (await gateway.http.options("/agents/echo/", headers=preflight)).status_code == 400
        metrics = (await gateway.http.get("/metrics")).text

    lines = refusal_lines(caplog)
    assert lines[0].endswith("(POST /agents/echo/ from 127.0.0.1 over http, origin 'https://evil.example')")
    assert len(lines[1]) < 600
    assert lines[2] == (
        "a request was refused: Disallowed CORS origin, headers. a2a_cors_origins lists the allowed origins "
        "(OPTIONS /agents/echo/ from 127.0.0.1 over http, origin 'https://evil.example', requested_method 'POST', "
        "requested_headers 'x-a')"
    )
    assert 'a2a_gateway_refused_callers_total{reason="other_origin"} 2.0' in metrics
    assert 'a2a_gateway_refused_callers_total{reason="preflight"} 1.0' in metrics


def test_many_requests_that_are_not_http_write_few_lines() -> None:
    clock = ManualClock()
    invalid_requests = InvalidRequestFilter(clock)

    def logged(text: str) -> str | None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, None, None)
        return record.getMessage() if invalid_requests.filter(record) else None

    lines = [logged(INVALID_REQUEST) for _ in range(LINES_PER_SECOND + 5)]
    assert lines == [INVALID_REQUEST] * LINES_PER_SECOND + [None] * 5
    assert logged("another line") == "another line"
    clock.advance(1)
    assert logged(INVALID_REQUEST) == f"{INVALID_REQUEST} 5 more since the last line."
    assert logged(INVALID_REQUEST) == INVALID_REQUEST
