"""Requests beyond a limit. The gateway rejects them with the error of each binding, before it stores anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any

import grpc.aio
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.families.section import MAX_DEPTH
from a2a_celery.lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys, Operation
from tests.support.clients.bindings import GRPC_V1, message_json
from tests.support.processes.local_gateway import WAYS, LocalGateway, Refusal, local_gateway
from tests.support.store.seeds import CONTEXT, Seeds, status
from tests.support.waiting import LIMIT, eventually_async

LIMITS: dict[str, dict[str, Any]] = {
    "requests": {"owner_requests_per_second": 0.02},
    "concurrent": {"owner_max_concurrent_tasks": 1},
    "queued": {"agent_max_queue": 1},
}
SECONDS = {
    "requests": 50,
    "streams": 10,
    "memory": 30,
    "webhooks": 60,
    "owner_bytes": 60,
}
"""Value of Retry-After in seconds, by limit. Limits of tasks have one second until a run has finished."""

ANONYMOUS = Scope("echo")


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


async def send_first(gateway: LocalGateway, **message: Any) -> dict[str, Any]:
    """Send a message, and wait until the run of its task, which is the only run, is published."""
    task = await gateway.send_message(**message)

    async def is_published() -> bool:
        [(_, due)] = await gateway.store.redis.zrange(gateway.keys.dispatch, 0, -1, withscores=True)
        seconds, _ = await gateway.store.redis.time()
        return bool(due > (seconds + 10) * 1e6)

    await eventually_async(is_published, what="its run is published")
    return task


def require_refusal(refusal: Refusal, limit: str, way: tuple[str, str, str]) -> None:
    """Require that the refusal contains the limit and the delay before a retry."""
    binding = way[0]
    assert refusal.status == ("RESOURCE_EXHAUSTED" if binding == "GRPC" else 429)
    if limit == "requests":
        assert SECONDS[limit] - 40 <= int(refusal.retry_after) <= SECONDS[limit]
    else:
        assert int(refusal.retry_after) == SECONDS.get(limit, 1)
    if way[:2] == ("GRPC", "0.3"):
        return  # gRPC of 0.3 has no details
    if way[:2] == ("JSONRPC", "0.3"):
        assert (refusal.code, refusal.details) == (-32603, [{"limit": limit, "retryAfter": refusal.retry_after}])
        return
    info, retry_info = refusal.details
    assert (info["reason"], info["domain"]) == ("LIMIT_EXCEEDED", "a2a-protocol.org")
    assert info["metadata"] == {"limit": limit, "retryAfter": refusal.retry_after}
    assert retry_info["@type"] == "type.googleapis.com/google.rpc.RetryInfo"
    assert retry_info["retryDelay"] == f"{refusal.retry_after}s"
    assert refusal.code == {"JSONRPC": -32603, "HTTP+JSON": 429, "GRPC": None}[binding]


@pytest.mark.parametrize("limit", LIMITS)
async def test_every_limit_refuses_in_every_binding_and_stores_nothing(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        await send_first(gateway)
        data_before = await seeds.all_values()
        for way in WAYS:
            require_refusal(await gateway.refusal(*way), limit, way)

        assert await seeds.all_values() == data_before
        metrics = (await gateway.http.get("/metrics")).text
        assert f'a2a_gateway_refusals_total{{agent="echo",limit="{limit}"}} {len(WAYS)}.0' in metrics


@pytest.mark.parametrize("limit", ["concurrent", "queued"])
async def test_an_answer_to_a_question_is_a_run_too(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    paused_id = await seeds.create_task_in(INPUT_REQUIRED, scope=ANONYMOUS)
    async with local_gateway(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        first = await send_first(gateway)
        data_before = await seeds.all_values()
        refusal = await gateway.try_to_send(taskId=paused_id)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
        assert await seeds.all_values() == data_before
        second_answer = await gateway.try_to_send(taskId=first["id"])
        assert second_answer.status_code == 200, "a message that waits for its own task's run begins none"

        await gateway.http.post(f"/agents/echo/tasks/{first['id']}:cancel", headers={"A2A-Version": "1.0"})

        assert (await gateway.send_message(taskId=paused_id))["status"]["state"] == "TASK_STATE_SUBMITTED"


async def test_tasks_of_all_agents_count_and_a_queue_is_an_agents_own(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, owner_max_concurrent_tasks=2) as gateway:
        await gateway.send_message("echo")
        await gateway.send_message("other")
        assert (await gateway.try_to_send("echo")).status_code == 429
        assert (await gateway.try_to_send("echo", "another")).status_code == 200
    async with local_gateway(store, redis_server.store_url, keys, agent_max_queue=1) as gateway:
        await gateway.send_message("echo")
        assert (await gateway.try_to_send("echo", "another")).status_code == 429
        assert (await gateway.try_to_send("other")).status_code == 200


async def test_the_limit_of_an_owner_comes_before_the_limit_of_a_parent(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    """The check of a parent may read all of its children."""
    async with local_gateway(store, redis_server.store_url, keys, owner_max_concurrent_tasks=1) as gateway:
        task = await gateway.send_message()
        await store.redis.hset(keys.task(task["id"]).record, "depth", MAX_DEPTH)

        answer = await gateway.try_to_send(metadata={NAMESPACE + PARENT_TASK_ID: task["id"]})

    assert answer.status_code == 429
    assert "concurrent" in answer.text


@pytest.mark.parametrize("limit", ["concurrent", "queued"])
async def test_a_repetition_of_an_accepted_message_is_never_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        task = await gateway.send_message(messageId="again")
        assert (await gateway.try_to_send()).status_code == 429

        assert (await gateway.send_message(messageId="again"))["id"] == task["id"]


async def test_a_webhook_beyond_the_owner_s_limit_is_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    config = {"url": "https://hooks.example.com/a"}
    setting = {"owner_max_webhooks": 1, "secret_key": "0123456789abcdef0123456789abcdef"}
    async with local_gateway(store, redis_server.store_url, keys, **setting) as gateway:
        task = await gateway.send_message()
        path, version = f"/tasks/{task['id']}/pushNotificationConfigs", {"A2A-Version": "1.0"}
        responses = [await gateway.http.post(path, json=config, headers=version) for _ in range(2)]
        brought = message_json() | {"configuration": {"taskPushNotificationConfig": config}}

        assert [answer.status_code for answer in responses] == [200, 429]
        for way in (("JSONRPC", "1.0", "SendMessage"), ("HTTP+JSON", "1.0", "SendMessage")):
            require_refusal(await gateway.refusal(*way, brought), "webhooks", way)
        assert (await gateway.try_to_send()).status_code == 200


async def are_published(seeds: Seeds) -> bool:
    """Return True if the broker has confirmed the run of each task. A gateway records this after its response."""
    values = await seeds.all_values()
    return all(b"published_at" in r for name, r in values.items() if name.endswith(":task") and isinstance(r, dict))


async def test_stored_bytes_refuse_every_message_in_every_binding(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, owner_max_stored_bytes=6_000) as gateway:
        task = await gateway.send_message(text="x" * 3_000)
        assert (await gateway.try_to_send(text="x" * 3_000)).status_code == 429
        assert (await gateway.try_to_send(text="x" * 3_000, taskId=task["id"])).status_code == 429, "it would wait"
        assert (await gateway.try_to_send()).status_code == 200, "there is room for a small one"
    await eventually_async(partial(are_published, seeds), what="the runs are recorded as published")
    async with local_gateway(store, redis_server.store_url, keys, owner_max_stored_bytes=10) as gateway:
        data_before = await seeds.all_values()
        for way in WAYS:
            require_refusal(await gateway.refusal(*way), "owner_bytes", way)
        assert await seeds.all_values() == data_before


@pytest.fixture
async def above_the_watermark(store: AsyncStore) -> AsyncIterator[dict[str, Any]]:
    """Settings of a gateway whose store is above the memory watermark."""
    await store.redis.config_set("maxmemory", "1gb")
    yield {"store_watermark": 1e-5}
    await store.redis.config_set("maxmemory", "0")


async def test_above_the_watermark_no_message_is_accepted_and_what_runs_ends(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    seeds: Seeds,
    above_the_watermark: dict[str, Any],
) -> None:
    running, paused_id = (
        await seeds.claim_run(scope=ANONYMOUS),
        await seeds.create_task_in(INPUT_REQUIRED, scope=ANONYMOUS),
    )
    async with local_gateway(store, redis_server.store_url, keys, **above_the_watermark) as gateway:
        data_before = await seeds.all_values()
        for way in WAYS:
            require_refusal(await gateway.refusal(*way), "memory", way)
        for task_id in (running.ref.task_id, paused_id):
            assert (await gateway.try_to_send(taskId=task_id)).status_code == 429
        assert await seeds.all_values() == data_before
        assert (await read_task(gateway, of=paused_id))[0] == 200

    assert (await seeds.settle_run(running, status(COMPLETED))).state == COMPLETED


async def test_above_the_watermark_a_message_that_was_accepted_is_found_again(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, above_the_watermark: dict[str, Any]
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, store_watermark=None) as gateway:
        task = await gateway.send_message(messageId="again")
    async with local_gateway(store, redis_server.store_url, keys, **above_the_watermark) as gateway:
        assert (await gateway.try_to_send()).status_code == 429
        assert (await gateway.send_message(messageId="again"))["id"] == task["id"]


async def test_of_two_gateways_one_gets_the_last_slot(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    url, limit_settings = redis_server.store_url, {"owner_max_concurrent_tasks": 7}
    async with (
        local_gateway(store, url, keys, **limit_settings) as first,
        local_gateway(store, url, keys, **limit_settings) as second,
    ):
        answers = await asyncio.gather(*(gateway.try_to_send() for _ in range(20) for gateway in (first, second)))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 33
    assert await store.redis.zcard(keys.scope_index(ANONYMOUS) + "1") == 7


async def read_task(gateway: LocalGateway, tenant: str = "", of: str = "none") -> tuple[int, str]:
    """Request a task at the cost of one token. Return the status and the Retry-After header of the response."""
    path = f"/agents/echo/{tenant}/tasks/{of}" if tenant else f"/tasks/{of}"
    answer = await gateway.http.get(path, headers={"A2A-Version": "1.0"})
    return answer.status_code, answer.headers.get("retry-after", "")


async def test_a_tenant_that_a_caller_may_not_use_has_no_separate_account(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    entry = f"alice:sha256:{sha256(b'key').hexdigest()}:acme"
    alice = {"A2A-Version": "1.0", "X-API-Key": "key"}
    limit_settings = {"owner_requests_per_second": 0.01, "auth_api_keys": (entry,)}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        data_before = await seeds.all_values()
        for tenant in ("beta", "gamma", "delta"):
            assert (await gateway.http.get(f"/agents/echo/{tenant}/tasks/none", headers=alice)).status_code == 403
        assert await seeds.all_values() == data_before, "the store has not heard of them"

        assert (await gateway.http.get("/agents/echo/acme/tasks/none", headers=alice)).status_code == 404
        assert (await gateway.http.get("/agents/echo/acme/tasks/none", headers=alice)).status_code == 429
        assert (await gateway.http.get("/agents/echo/beta/tasks/none", headers=alice)).status_code == 403


ANN = f"ann:sha256:{sha256(b'key').hexdigest()}"
AS_ANN = {"A2A-Version": "1.0", "X-API-Key": "key"}


@pytest.mark.parametrize("limit", ["owner_requests_per_second", "owner_max_concurrent_tasks"])
async def test_a_caller_gets_no_more_by_naming_many_tenants(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, limit: str
) -> None:
    limit_settings = {limit: 0.01 if limit.endswith("second") else 1, "auth_api_keys": (ANN,)}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        body = message_json() | {"configuration": {"returnImmediately": True}}
        paths = [f"/agents/echo/tenant-{n}/message:send" for n in range(5)]
        answers = [await gateway.http.post(path, json=body, headers=AS_ANN) for path in paths]

    assert [answer.status_code for answer in answers] == [200, 429, 429, 429, 429]


BAD_BODIES = {
    "no JSON": b"[",
    "values": b"[" + b"0," * 20_001 + b"0]",
    "depth": b"[" * 200 + b"]" * 200,
    "bytes": b" " * 1_100_000,
    "no request": b"{}",
}


@pytest.mark.parametrize("bad", BAD_BODIES)
@pytest.mark.parametrize("path", ["/", "/message:send", "/acme/message:send", "/v1/message:send"])
async def test_a_request_refused_before_parsing_takes_a_token(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str, bad: str
) -> None:
    limit_settings = {
        "owner_requests_per_second": 0.01,
        "owner_request_burst": 2,
        "auth_api_keys": (ANN,),
        "max_request_bytes": 1_000_000,
    }
    headers = AS_ANN | {"Content-Type": "application/json"} | ({"A2A-Version": "0.3"} if "v1" in path else {})
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        contents = [BAD_BODIES[bad], *["no JSON"] * 3]  # after a large body, another large body would wait
        answers = [await gateway.http.post(path, content=content, headers=headers) for content in contents]
        good = await gateway.http.get("/tasks", headers=AS_ANN)

    assert [answer.status_code == 429 for answer in answers] == [False, False, True, True]
    assert [int(answer.headers["retry-after"]) > 50 for answer in (*answers[2:], good)] == [True] * 3
    assert answers[3].json()["error"]["message"].startswith("The rate limit of requests is reached")


async def test_a_large_body_of_a_caller_without_tokens_is_not_read(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    chunks = []

    async def large_body() -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            chunks.append(1)
            yield b" " * 50_000

    limit_settings = {"owner_requests_per_second": 0.01, "auth_api_keys": (ANN,)}
    async with local_gateway(store, redis_server.store_url, keys, **limit_settings) as gateway:
        headers = AS_ANN | {"Content-Type": "application/json"}
        statuses = [(await gateway.http.get("/tasks", headers=headers)).status_code for _ in range(2)]
        refusal = await gateway.http.post("/", content=large_body(), headers=headers)

    assert [*statuses, refusal.status_code] == [200, 429, 429]
    assert not chunks


async def test_after_a_burst_the_rate_limits_requests(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    url, rate = redis_server.store_url, {"owner_requests_per_second": 0.01, "owner_request_burst": 5}
    async with local_gateway(store, url, keys, **rate) as first, local_gateway(store, url, keys, **rate) as second:
        assert [await read_task(first) for _ in range(5)] == [(404, "")] * 5
        status_code, retry_after = await read_task(first)
        assert (status_code, 60 < int(retry_after) <= 100) == (429, True)
        assert await read_task(first, "another") == (404, "")
        [bucket] = [key async for key in store.redis.scan_iter(keys.requests(Scope()))]
        assert 0 < await store.redis.pttl(bucket) <= 500_000
        bucket_value = int(await store.redis.get(bucket))
        await store.redis.set(bucket, bucket_value - 100_000_000, px=500_000)  # a hundred seconds later

        assert [(await read_task(second))[0] for _ in range(2)] == [404, 429]


async def test_the_default_burst_is_the_number_of_requests_in_one_second(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async def set_full_in(seconds: float) -> None:
        """Set the bucket of the caller so that it is full again after some seconds."""
        now, micros = await store.redis.time()
        await store.redis.set(keys.requests(Scope()), int((now + seconds) * 1e6 + micros), px=600_000)

    async with local_gateway(store, redis_server.store_url, keys, owner_requests_per_second=2.5) as gateway:
        await set_full_in(2 / 2.5)
        one_token_is_left = await read_task(gateway)
        await set_full_in(60)
        status_code, _ = await read_task(gateway)

    assert one_token_is_left == (404, "")
    assert status_code == 429


async def test_a_flood_does_not_reach_the_store(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> None:
    async with local_gateway(store, redis_server.store_url, keys, owner_requests_per_second=0.01) as gateway:
        assert [(await read_task(gateway))[0] for _ in range(2)] == [404, 429]
        await store.redis.delete(keys.requests(Scope()))

        assert [status for status, _ in await asyncio.gather(*(read_task(gateway) for _ in range(20)))] == [429] * 20
        assert not await store.redis.exists(keys.requests(Scope()))
        assert (await read_task(gateway, "another"))[0] == 404


async def test_without_limits_nothing_is_asked_of_the_store(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        await gateway.send_message()
        card = await gateway.http.get("/.well-known/agent-card.json")

    assert card.status_code == 200
    assert not [key for key in await seeds.all_values() if ":requests:" in key or ":queue:" in key]


async def test_the_retry_time_follows_the_duration_of_runs(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    async with local_gateway(store, redis_server.store_url, keys, owner_max_concurrent_tasks=2) as gateway:
        for seconds in (30, 50):  # with two concurrent runs
            claim = await seeds.claim_run(scope=ANONYMOUS)
            record = keys.task(claim.ref.task_id).record
            await store.redis.hincrby(record, "claimed_at", -seconds * 1_000_000)
            await seeds.settle_run(claim, status(COMPLETED))
        for _ in range(2):
            await seeds.create_task(ANONYMOUS, context_id=CONTEXT)

        answer = await gateway.try_to_send()

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "21")


@pytest.mark.parametrize(("seconds", "retry_after"), [((30, 50), 21), ((300, 500), 60)], ids=["mean", "longest"])
async def test_the_retry_time_follows_the_waiting_time_of_runs(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    seeds: Seeds,
    seconds: tuple[int, ...],
    retry_after: int,
) -> None:
    for waited in seconds:
        task_id = await seeds.create_task(ANONYMOUS)
        await store.redis.hincrby(keys.task(task_id).record, "at", -waited * 1_000_000)
        await seeds.settle_run(await seeds.claim_run(task_id), status(COMPLETED))
    async with local_gateway(store, redis_server.store_url, keys, agent_max_queue=2) as gateway:
        for _ in range(2):
            await gateway.send_message()
        answer = await gateway.try_to_send()

    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(retry_after))


async def test_an_unavailable_store_is_called_once(
    redis_server: EmbeddedRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch, store: AsyncStore
) -> None:
    calls: list[str] = []

    async def raise_unavailable(_: AsyncStore, operation: Operation[object]) -> object:
        calls.append(operation.script.name)
        raise StoreUnavailable("down")

    async with local_gateway(store, redis_server.store_url, keys, owner_requests_per_second=1) as gateway:
        monkeypatch.setattr(AsyncStore, "run", raise_unavailable)
        answers = [await gateway.http.get("/tasks/none", headers={"A2A-Version": "1.0"}) for _ in range(3)]
        card = await gateway.http.get("/extendedAgentCard", headers={"A2A-Version": "1.0"})

    assert [answer.status_code for answer in answers] == [503] * 3, "as without limits, and not later"
    assert calls == ["acquire_request"] * 3
    assert card.status_code == 400, "it has none"


STREAM_WAYS = [way for way in WAYS if way[2] == "SendStreamingMessage"]


def has_free_place(gateway: LocalGateway) -> Callable[[], Awaitable[bool]]:
    """Return a function that returns True if the only slot for a stream is free again."""

    async def is_free() -> bool:
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            call = stream(channel)
            try:
                return bool(await call.read())
            except grpc.aio.AioRpcError as refusal:
                return refusal.code() != grpc.StatusCode.RESOURCE_EXHAUSTED
            finally:
                call.cancel()

    return is_free


def stream(channel: grpc.aio.Channel) -> Any:
    """Return the stream of a message whose run no worker executes."""
    request = ParseDict(message_json(), SendMessageRequest())
    return a2a_pb2_grpc.A2AServiceStub(channel).SendStreamingMessage(request, metadata=GRPC_V1, timeout=LIMIT)


async def test_streams_of_an_owner_are_bounded_over_all_bindings_together(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with (
        local_gateway(store, redis_server.store_url, keys, owner_max_streams=2) as gateway,
        gateway.serve() as http,
    ):
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message_json()}
        async with (
            grpc.aio.insecure_channel(gateway.grpc) as channel,
            http.stream("POST", "/", json=rpc, headers={"A2A-Version": "1.0"}) as over_http,
        ):
            lines = over_http.aiter_lines()
            assert await anext(lines)
            over_grpc = stream(channel)
            assert await over_grpc.read()
            streaming = await gateway.ids()
            task_id = streaming[0]
            for way in STREAM_WAYS:
                require_refusal(await gateway.refusal(*way), "streams", way)
            subscription = await gateway.http.get(f"/tasks/{task_id}:subscribe", headers={"A2A-Version": "1.0"})
            assert subscription.status_code == 429
            assert (await read_task(gateway, of=task_id))[0] == 200, "what is no stream is not refused"
            assert await gateway.ids() == streaming, "nothing is stored of what was refused"
            over_grpc.cancel()
            await eventually_async(has_free_place(gateway), what="the gRPC stream has released its permit")


@pytest.mark.parametrize("ends", ["client", "task"])
async def test_the_end_of_a_stream_frees_its_slot(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, ends: str
) -> None:
    async with (
        local_gateway(store, redis_server.store_url, keys, owner_max_streams=1) as gateway,
        gateway.serve() as http,
    ):
        task_id = (await gateway.send_message())["id"]
        path, version = f"/tasks/{task_id}:subscribe", {"A2A-Version": "1.0"}
        async with http.stream("GET", path, headers=version) as stream:
            assert stream.status_code == 200
            assert (await gateway.http.get(path, headers=version)).status_code == 429
            if ends == "task":
                await gateway.http.post(f"/tasks/{task_id}:cancel", headers=version)
                assert [line async for line in stream.aiter_lines()]

        await eventually_async(has_free_place(gateway), what="the place is free")


async def test_a_task_at_its_maximum_size_takes_no_more_messages(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    paused_id = await seeds.create_task_in(INPUT_REQUIRED, scope=ANONYMOUS)
    async with local_gateway(store, redis_server.store_url, keys, task_max_bytes=5_000) as gateway:
        running = (await send_first(gateway, text="x" * 1_000))["id"]
        data_before = await seeds.all_values()
        for task_id in (paused_id, running):
            answer = await gateway.try_to_send(taskId=task_id, text="x" * 4_900)
            error = answer.json()["error"]
            assert (answer.status_code, error["details"][0]["reason"]) == (400, "UNSUPPORTED_OPERATION")
            assert error["message"].startswith("This message would make the task larger than 5000 bytes")
        assert await seeds.all_values() == data_before

        for task_id in (paused_id, running):
            assert (await gateway.try_to_send(taskId=task_id)).status_code == 200, "a small one fits"
