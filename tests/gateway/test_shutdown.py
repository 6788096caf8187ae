"""Shutdown of the gateway in process. Waiting calls return the current task, and gRPC stops with HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from a2a.types import AgentCard, GetTaskRequest, SendMessageRequest, TaskState, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.auth.refusal_log import RequestSource
from a2a_celery.gateway.bindings.grpc import GrpcOperations
from a2a_celery.gateway.bindings.sdk_handler import SdkHandler
from a2a_celery.gateway.call import Call
from a2a_celery.gateway.protocol_errors import ServiceUnavailableError
from a2a_celery.gateway.shutdown import GatewayShutdown
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import GRPC_V1, V1, message_json
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.store.seeds import Seeds
from tests.support.waiting import LIMIT, eventually_async


def stub_of(channel: grpc.aio.Channel) -> Any:
    return a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]


def message() -> SendMessageRequest:
    return ParseDict(message_json(), SendMessageRequest())


async def test_waiting_calls_are_cancelled_some_time_after_the_shutdown_has_begun() -> None:
    shutdown = GatewayShutdown(wait_timeout=0)

    with shutdown.waiting():
        shutdown.begin()
        await asyncio.Event().wait()
        raise AssertionError


async def end_waiting(gateway: LocalGateway, call: asyncio.Future[Any]) -> Any:
    """Cancel the waiting calls of the gateway until `call` has ended, and return its response."""

    async def has_ended() -> bool:
        gateway.shutdown.cancel_waiting()
        return call.done()

    await eventually_async(has_ended, what="the waiting call has ended")
    return await call


async def test_a_blocking_grpc_call_returns_the_current_task_when_the_application_stops(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with (
        local_gateway(store, redis_server.store_url, keys) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        call = stub_of(channel).SendMessage(message(), metadata=GRPC_V1, timeout=LIMIT)
        await eventually_async(gateway.ids, what="the call has created its task")
        gateway.shutdown.begin()
        response = await end_waiting(gateway, call)

    assert response.task.status.state == TaskState.TASK_STATE_SUBMITTED


async def test_grpc_accepts_no_calls_after_the_stop_signal(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:

        async def is_refused() -> bool:
            async with grpc.aio.insecure_channel(gateway.grpc) as channel:
                try:
                    await stub_of(channel).GetTask(GetTaskRequest(id="none"), metadata=GRPC_V1, timeout=LIMIT)
                except grpc.aio.AioRpcError as error:
                    return error.code() == grpc.StatusCode.UNAVAILABLE
            return False

        assert not await is_refused()
        gateway.shutdown.begin()
        await eventually_async(is_refused, what="the gRPC port is closed while the application runs")


async def test_a_grpc_stream_ends_with_an_error_when_the_application_stops(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        channel = grpc.aio.insecure_channel(gateway.grpc)
        stream = stub_of(channel).SendStreamingMessage(message(), metadata=GRPC_V1, timeout=LIMIT)
        assert await stream.read()
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError, match="subscribe to the task again") as exc_info:
            await stream.read()

    assert exc_info.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_grpc_stream_that_is_being_written_ends_before_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway_shutdown = GatewayShutdown()

    handler: Any = SimpleNamespace(shutdown=gateway_shutdown, agent=SimpleNamespace(card=AgentCard()))

    async def count_up(*_: object) -> AsyncIterator[int]:
        for number in count():
            yield number

    monkeypatch.setattr(SdkHandler, "stream", count_up)
    call = Call(handler=handler, source=RequestSource)  # type: ignore[arg-type]
    events: Any = GrpcOperations().stream("SendStreamingMessage", None, call)
    assert await anext(events) == 0
    gateway_shutdown.end_streams()

    with pytest.raises(ServiceUnavailableError, match="subscribe to the task again"):
        await anext(events)


async def test_a_cancel_call_returns_the_current_task_when_the_gateway_stops(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, cancel_grace=600) as gateway:
        task_id = (await gateway.send_message())["id"]
        await Seeds(store, keys).claim_run(task_id)
        call = asyncio.create_task(gateway.http.post(f"/tasks/{task_id}:cancel", headers=V1))
        response = await end_waiting(gateway, call)

    assert response.status_code == 200
    assert response.json()["id"] == task_id
    assert response.json()["status"]["state"] != "TASK_STATE_CANCELED"
