"""Retry-After delays. The client waits for the requested time within limits, and sends a refused message once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import Artifact, GetTaskRequest, Part, Task, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import code_pb2, error_details_pb2, status_pb2

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client import AgentUnreachable, CallRefused, RemoteAgent, ResponseLost, TooManyRequests
from a2a_celery.client.calling.progress import CallProgress
from a2a_celery.client.connection.turn_stream import ReconnectBackoff
from a2a_celery.client.errors import translate_errors
from a2a_celery.gateway.middleware.bodies import BODY_TIMEOUT
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import BINDINGS
from tests.support.clocks import ManualClock, ShortSleepClock
from tests.support.processes.grpc_agent import grpc_agent
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.waiting import eventually_async

NOW = 1_000_000.0


EVERY = 500
"""Minimum number of seconds between two requests that the gateway accepts."""


@pytest.fixture
def clock() -> ManualClock:
    """Clock that the gateway and its client share. The store has a separate clock."""
    return ManualClock()


@pytest.fixture
async def gateway(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, clock: ManualClock
) -> AsyncIterator[LocalGateway]:
    rate = {"owner_requests_per_second": 1 / EVERY, "owner_request_burst": 1}
    async with local_gateway(store, redis_server.store_url, keys, clock, **rate) as limited_gateway:
        yield limited_gateway


async def refusals(gateway: LocalGateway) -> int:
    metrics = (await gateway.http.get("/metrics")).text
    counter = [line for line in metrics.splitlines() if line.startswith("a2a_gateway_refusals_total{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in counter)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_waits_for_the_requested_time(gateway: LocalGateway, clock: ManualClock, binding: str) -> None:
    agent = RemoteAgent(
        "http://test", http=gateway.http, transports=[binding], reconnect_timeout=2 * EVERY, clock=clock, hosts="*"
    )
    await agent.submit(agent.session().message("one"))
    send_task = asyncio.create_task(agent.submit(agent.session().message("two")))

    async def waits() -> list[float]:
        return [seconds for seconds in clock.waits if seconds > BODY_TIMEOUT]  # shorter waits are the gateway's

    [seconds] = await eventually_async(waits, what="the client waits")
    assert EVERY - 120 < seconds <= EVERY * 1.1
    await gateway.store.redis.delete(gateway.keys.requests(Scope("echo")))  # the rate limit in the store expires too
    clock.advance(seconds)
    await send_task
    await agent.close()

    assert await refusals(gateway) == 1, "one try too early, and none before its time"
    assert await gateway.store.redis.zcard(gateway.keys.scope_index(Scope("echo")) + "1") == 2


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_wait_beyond_the_deadline_fails_at_once(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, binding: str
) -> None:
    rate = {"owner_requests_per_second": 0.001}
    async with local_gateway(store, redis_server.store_url, keys, ShortSleepClock(), **rate) as gateway:
        agent = RemoteAgent("http://test", http=gateway.http, transports=[binding], reconnect_timeout=500, hosts="*")
        first = await agent.submit(agent.session().message("hello"))
        with pytest.raises(TooManyRequests) as exc_info:
            await agent.submit(agent.session().message("hello"))
        with pytest.raises(TooManyRequests):
            await agent.get(first.task_id)
        await agent.close()

        assert exc_info.value.retry_after is not None
        assert 900 < exc_info.value.retry_after <= 1000
        assert await refusals(gateway) == 2


@pytest.mark.parametrize(
    ("status", "header", "kind", "expected"),
    [
        (429, "7", TooManyRequests, 7),
        (429, "", TooManyRequests, None),
        (429, "soon", TooManyRequests, None),
        (429, "Thu, 01 Jan 1970 00:00:00 GMT", TooManyRequests, 0),
        (503, "12", AgentUnreachable, 12),
    ],
)
def test_any_server_may_say_when(
    status: int, header: str, kind: type[AgentUnreachable], expected: float | None
) -> None:
    response = httpx.Response(status, headers={"Retry-After": header}, request=httpx.Request("POST", "http://a"))

    with pytest.raises(AgentUnreachable) as exc_info, translate_errors("http://a"):
        response.raise_for_status()

    assert type(exc_info.value) is kind
    assert exc_info.value.retry_after == expected


@pytest.mark.parametrize(("status", "kind"), [(429, TooManyRequests), (503, ResponseLost)])
async def test_the_error_of_a_message_has_the_requested_time(status: int, kind: type[AgentUnreachable]) -> None:
    interface = {"url": "http://a", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    card = {"name": "it", "supportedInterfaces": [interface]}

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=card) if request.method == "GET" else refusal

    refusal = httpx.Response(status, headers={"Retry-After": "120"})
    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    async with http, RemoteAgent("http://a", http=http, reconnect_timeout=60) as agent:
        with pytest.raises(AgentUnreachable) as exc_info:
            await agent.submit("hello")

    assert (type(exc_info.value), exc_info.value.retry_after) == (kind, 120)


async def test_a_server_may_say_it_as_retry_info() -> None:
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="no")
    retry_info = error_details_pb2.RetryInfo()
    retry_info.retry_delay.FromMilliseconds(2500)
    status.details.add().Pack(retry_info)

    async def get_task(request: GetTaskRequest, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")

    async with grpc_agent(GetTaskServicer(get_task)) as agent:
        with pytest.raises(TooManyRequests) as exc_info:
            await agent.get("t")

    assert exc_info.value.retry_after == 2.5
    assert MessageToDict(retry_info) == {"retryDelay": "2.500s"}


class GetTaskServicer(a2a_pb2_grpc.A2AServiceServicer):
    """Service that only implements GetTask."""

    def __init__(self, get_task: Callable[[GetTaskRequest, Any], Awaitable[Any]]) -> None:
        self._get_task = get_task

    async def GetTask(self, request: GetTaskRequest, context: Any) -> Any:
        return await self._get_task(request, context)


async def test_a_task_may_be_large_over_grpc_too() -> None:
    text = "x" * 5_000_000  # more than gRPC accepts by default

    async def get_task(request: GetTaskRequest, context: Any) -> Task:
        return Task(id=request.id, artifacts=[Artifact(artifact_id="a", parts=[Part(text=text)])])

    async with grpc_agent(GetTaskServicer(get_task)) as agent:
        assert (await agent.get("t")).text == text


@pytest.mark.parametrize("idempotent", [False, True])
async def test_what_is_too_large_for_the_server_is_not_sent_again(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, idempotent: bool
) -> None:
    """gRPC uses the same status code for a message that is too large and for too many requests."""
    async with (
        local_gateway(store, redis_server.store_url, keys, ShortSleepClock(), max_request_bytes=100_000) as gateway,
        RemoteAgent(
            "http://test", http=gateway.http, transports=["GRPC"], idempotent=idempotent, reconnect_timeout=5, hosts="*"
        ) as agent,
    ):
        with pytest.raises(CallRefused, match="larger than max"):
            await agent.submit(agent.session().message("x" * 200_000))


async def test_waiting_has_an_end() -> None:
    clock = ManualClock()
    backoff, error = ReconnectBackoff(100, clock), TooManyRequests("no", 30)
    for _ in range(3):
        waiting_call = asyncio.create_task(backoff.wait(error))
        await asyncio.sleep(0)
        [seconds] = clock.waits
        assert 30 <= seconds <= 33
        clock.advance(seconds)
        await waiting_call
    with pytest.raises(TooManyRequests):
        await backoff.wait(error)


def test_a_step_is_postponed_for_the_requested_time() -> None:
    step = CallProgress(NOW, "t").missed(NOW, 40, unreachable_for=600)
    progress_copy = CallProgress.read(step.to_dict(), NOW)

    assert progress_copy == step
    assert step.pause(NOW) >= 40
    assert step.pause(NOW, timeout=10) == 10
    assert step.pause(NOW, visibility=30) == 10, "its broker would deliver it again; so it is put off once more"
    assert [step.is_deferred(NOW + seconds) for seconds in (0, 39, 40)] == [True, True, False]
    assert not step.reached("t", has_webhook=False).is_deferred(NOW)


def test_a_step_with_a_too_long_wait_tries_once_more() -> None:
    step = CallProgress(NOW, "t").missed(NOW, 10_000, unreachable_for=600)

    assert [step.is_deferred(NOW + seconds) for seconds in (599, 600)] == [True, False]
