"""Internal errors over every binding. The client receives only a reference, and the log contains the details."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import GetTaskRequest, SendMessageRequest, a2a_pb2_grpc
from celery import Celery
from google.protobuf.json_format import ParseDict

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.operations.task_reader import StoredTask, TaskReader
from a2a_celery.lifecycle import EventId
from a2a_celery.store.log.follower import LogFollower, StreamEvent
from tests.support.clients.bindings import GRPC_V1, frames, message_json
from tests.support.clients.faults import from_grpc, from_rest, from_rpc
from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT

SECRET = "/srv/secret/place"
V1, V03 = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}


class BrokenGateway:
    """Gateway in the test process."""

    http: httpx.AsyncClient
    grpc: str


@pytest.fixture
async def gateway(redis_server: EmbeddedRedis) -> AsyncIterator[BrokenGateway]:
    app = Celery("broken", broker="memory://")
    gateway, port = BrokenGateway(), free_port()
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix="broken", a2a_grpc_port=port)
    a2a = A2A(app)

    @a2a.agent("echo")
    async def echo(turn: Turn) -> str:
        return turn.text

    asgi = a2a.asgi(standalone=True)
    gateway.grpc = f"127.0.0.1:{port}"
    async with (
        asgi.router.lifespan_context(asgi),
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test", timeout=LIMIT) as http,
    ):
        gateway.http = http
        yield gateway


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read of a task, and every stream after its first event, raise an unexpected error."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(SECRET)

    async def fail_later(*_: Any, **__: Any) -> AsyncGenerator[list[StreamEvent], None]:
        raise RuntimeError(SECRET)
        yield

    monkeypatch.setattr(TaskReader, "read", fail)
    monkeypatch.setattr(LogFollower, "events", fail_later)


def require_reference_only(error: Any, log: pytest.LogCaptureFixture) -> None:
    """Require that `error` is an internal error with a reference, and that the log contains the reference."""
    assert error.reason == "INTERNAL_ERROR"
    assert error.message == "Internal error"
    assert list(error.metadata) in (["reference"], [])
    log_records = [record for record in log.records if record.name == "a2a_celery.gateway.protocol_errors"]
    assert log_records[-1].exc_info is not None
    assert SECRET in str(log_records[-1].exc_info[1])
    assert error.metadata.get("reference", "reference") in log_records[-1].getMessage()


@pytest.mark.usefixtures("broken")
async def test_over_json_rpc(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}

    answer = (await gateway.http.post("/", json=body, headers=V1)).json()

    assert answer["error"]["code"] == -32603
    require_reference_only(from_rpc(answer), caplog)


@pytest.mark.usefixtures("broken")
async def test_over_http(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    answer = await gateway.http.get("/tasks/x", headers=V1)

    assert answer.status_code == 500
    require_reference_only(from_rest(answer), caplog)


@pytest.mark.usefixtures("broken")
async def test_over_grpc(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(GetTaskRequest(id="x"), metadata=GRPC_V1, timeout=LIMIT)

    assert exc_info.value.code() is grpc.StatusCode.INTERNAL
    require_reference_only(from_grpc(exc_info.value), caplog)


@pytest.mark.usefixtures("broken")
async def test_in_mid_stream_over_http_and_json_rpc(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    rpc_body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message_json()}
    for path, body in (("/message:stream", message_json()), ("/", rpc_body)):
        async with gateway.http.stream("POST", path, json=body, headers=V1) as response:
            first, last = [frame async for frame in frames(response)]

        assert first.version == 1
        assert last.event == "error"
        assert last.id == ""
        details = last.data["error"].get("details") or last.data["error"]["data"]
        assert details[0]["reason"] == "INTERNAL_ERROR"
        assert SECRET not in str(last)


@pytest.mark.usefixtures("broken")
async def test_in_mid_stream_over_grpc(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    request = ParseDict(message_json(), SendMessageRequest())
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        events = a2a_pb2_grpc.A2AServiceStub(channel).SendStreamingMessage(request, metadata=GRPC_V1, timeout=LIMIT)
        assert (await events.read()).HasField("task")
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await events.read()

    require_reference_only(from_grpc(exc_info.value), caplog)


@pytest.mark.usefixtures("broken")
async def test_over_protocol_03(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    request_body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
    over_rpc = await gateway.http.post("/", json=request_body, headers=V03)
    over_http = await gateway.http.get("/v1/tasks/x", headers=V03)

    assert over_rpc.json()["error"]["code"] == -32603
    assert over_http.status_code == 500
    assert SECRET not in over_rpc.text + over_http.text


@pytest.mark.usefixtures("broken")
async def test_in_mid_stream_over_protocol_03(gateway: BrokenGateway, caplog: pytest.LogCaptureFixture) -> None:
    message = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "x"}]}
    rpc_body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {"message": message}}
    http_body = {"request": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}
    for path, body in (("/v1/message:stream", http_body), ("/", rpc_body)):
        async with gateway.http.stream("POST", path, json=body, headers=V03) as response:
            first, last = [frame async for frame in frames(response)]

        assert first.version == 1
        assert "error" in last.data
        assert last.id == ""
        assert SECRET not in str(last)


async def test_an_error_in_a_response_to_03_is_not_blamed_on_the_request(
    gateway: BrokenGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(*_: Any, **__: Any) -> StoredTask:
        return StoredTask(object(), EventId(1))  # type: ignore[arg-type]  # cannot be converted to protocol 0.3

    monkeypatch.setattr(TaskReader, "read", answer)

    with caplog.at_level(logging.ERROR):
        error = from_rest(await gateway.http.get("/v1/tasks/x", headers=V03))

    assert error.status == 500
    assert error.reason == "INTERNAL_ERROR"


async def test_the_text_of_an_error_names_the_valid_value(gateway: BrokenGateway) -> None:
    message = message_json()["message"] | {"role": "user"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    rpc = (await gateway.http.post("/", json=body, headers=V1)).json()
    rest = (await gateway.http.post("/message:send", json={"message": message}, headers=V1)).json()
    legacy = body | {"method": "message/send", "params": {"message": {"role": "person", "messageId": "1", "parts": []}}}
    rpc_03 = (await gateway.http.post("/", json=legacy, headers=V03)).json()

    text = 'message.role: Send ROLE_USER: A2A 1.0 has no role "user".'
    assert [answer["error"]["message"] for answer in (rpc, rest)] == [text, text]
    assert "message.role: " in rpc_03["error"]["message"]
    assert rpc_03["error"]["data"]["errors"][0]["field"].endswith("message.role")
