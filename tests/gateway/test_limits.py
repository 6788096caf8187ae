"""What is one too many is refused before anything is stored, in the words of each binding; and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from hashlib import sha256
from typing import Any

import grpc.aio
import pytest
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.cli.embedded import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys, Operation, Scope
from tests.support.clients import GRPC_V1, message_json
from tests.support.faults import from_grpc
from tests.support.limited import WAYS, Limited, Refusal, limited
from tests.support.seeds import CONTEXT, Seeds, status
from tests.support.waiting import eventually_async

LIMITS: dict[str, dict[str, Any]] = {
    "requests": {"owner_requests_per_second": 0.02},
    "concurrent": {"owner_max_concurrent_tasks": 1},
    "waiting": {"owner_max_waiting_tasks": 1},
    "queued": {"agent_max_queue": 1},
}
SECONDS = {"requests": 50}
"""When to come again; for tasks a second, where no run has ended yet."""

NOBODY = Scope("echo")


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


async def first_sent(gateway: Limited) -> dict[str, Any]:
    """The one message that may be; what is written behind the answer has been."""
    task = await gateway.sent()

    async def published() -> bool:
        [(_, due)] = await gateway.store.redis.zrange(gateway.keys.dispatch, 0, -1, withscores=True)
        seconds, _ = await gateway.store.redis.time()
        return bool(due > (seconds + 10) * 1e6)

    await eventually_async(published, what="its run is published")
    return task


def require_told(found: Refusal, limit: str, way: tuple[str, str, str]) -> None:
    """Fails unless the client can know what it ran into, and when to come again."""
    binding = way[0]
    assert found.status == ("RESOURCE_EXHAUSTED" if binding == "GRPC" else 429)
    assert max(1, SECONDS.get(limit, 1) - 40) <= int(found.retry_after) <= SECONDS.get(limit, 1)
    if way[:2] == ("GRPC", "0.3"):
        return  # which has no details
    if way[:2] == ("JSONRPC", "0.3"):
        assert (found.code, found.details) == (-32603, [{"limit": limit, "retryAfter": found.retry_after}])
        return
    info, again = found.details
    assert (info["reason"], info["domain"]) == ("LIMIT_EXCEEDED", "a2a-protocol.org")
    assert info["metadata"] == {"limit": limit, "retryAfter": found.retry_after}
    assert again["@type"] == "type.googleapis.com/google.rpc.RetryInfo"
    assert again["retryDelay"] == f"{found.retry_after}s"
    assert found.code == {"JSONRPC": -32603, "HTTP+JSON": 429, "GRPC": None}[binding]


@pytest.mark.parametrize("limit", LIMITS)
async def test_every_limit_refuses_in_every_binding_and_stores_nothing(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    async with limited(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        await first_sent(gateway)
        before = await seeds.everything()
        for way in WAYS:
            require_told(await gateway.refusal(*way), limit, way)

        assert await seeds.everything() == before
        metrics = (await gateway.http.get("/metrics")).text
        assert f'a2a_gateway_refusals_total{{agent="echo",limit="{limit}"}} {len(WAYS)}.0' in metrics


@pytest.mark.parametrize("limit", ["concurrent", "waiting", "queued"])
async def test_an_answer_to_a_question_is_a_run_too(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    paused = await seeds.ended(INPUT_REQUIRED, scope=NOBODY)
    async with limited(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        first = await first_sent(gateway)
        before = await seeds.everything()
        refused = await gateway.try_to_send(taskId=paused)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert await seeds.everything() == before
        more = await gateway.try_to_send(taskId=first["id"])
        assert more.status_code == 200, "a message that waits for its own task's run begins none"

        await gateway.http.post(f"/agents/echo/tasks/{first['id']}:cancel", headers={"A2A-Version": "1.0"})

        assert (await gateway.sent(taskId=paused))["status"]["state"] == "TASK_STATE_SUBMITTED"


async def test_tasks_of_all_agents_count_and_a_queue_is_an_agents_own(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with limited(store, redis_server.store_url, keys, owner_max_waiting_tasks=2) as gateway:
        await gateway.sent("echo")
        await gateway.sent("other")
        assert (await gateway.try_to_send("echo")).status_code == 429
        assert (await gateway.try_to_send("echo", "another")).status_code == 200
    async with limited(store, redis_server.store_url, keys, agent_max_queue=1) as gateway:
        await gateway.sent("echo")
        assert (await gateway.try_to_send("echo", "another")).status_code == 429
        assert (await gateway.try_to_send("other")).status_code == 200


@pytest.mark.parametrize("limit", ["concurrent", "waiting", "queued"])
async def test_what_was_accepted_is_never_refused_when_it_comes_again(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, limit: str
) -> None:
    async with limited(store, redis_server.store_url, keys, **LIMITS[limit]) as gateway:
        task = await gateway.sent(messageId="again")
        assert (await gateway.try_to_send()).status_code == 429

        assert (await gateway.sent(messageId="again"))["id"] == task["id"]


async def test_of_two_gateways_one_gets_the_last_place(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    url, most = redis_server.store_url, {"owner_max_concurrent_tasks": 7}
    async with limited(store, url, keys, **most) as one, limited(store, url, keys, **most) as two:
        answers = await asyncio.gather(*(gateway.try_to_send() for _ in range(20) for gateway in (one, two)))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 33
    assert await store.redis.zcard(keys.scope_index(NOBODY) + "1") == 7


async def read(gateway: Limited, tenant: str = "") -> tuple[int, str]:
    """A read that costs nothing but its token: its status, and when to come again."""
    path = f"/agents/echo/{tenant}/tasks/none" if tenant else "/tasks/none"
    answer = await gateway.http.get(path, headers={"A2A-Version": "1.0"})
    return answer.status_code, answer.headers.get("retry-after", "")


async def test_a_tenant_that_a_caller_may_not_use_is_no_owner_of_its_own(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    entry = f"alice:sha256:{sha256(b'key').hexdigest()}:acme"
    alice = {"A2A-Version": "1.0", "X-API-Key": "key"}
    most = {"owner_requests_per_second": 0.01, "auth_api_keys": (entry,)}
    async with limited(store, redis_server.store_url, keys, **most) as gateway:
        before = await seeds.everything()
        for tenant in ("beta", "gamma", "delta"):
            assert (await gateway.http.get(f"/agents/echo/{tenant}/tasks/none", headers=alice)).status_code == 403
        assert await seeds.everything() == before, "the store has not heard of them"

        assert (await gateway.http.get("/agents/echo/acme/tasks/none", headers=alice)).status_code == 404
        assert (await gateway.http.get("/agents/echo/acme/tasks/none", headers=alice)).status_code == 429
        assert (await gateway.http.get("/agents/echo/beta/tasks/none", headers=alice)).status_code == 403


async def test_a_burst_then_as_many_as_the_rate_gives(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    url, rate = redis_server.store_url, {"owner_requests_per_second": 0.01, "owner_request_burst": 5}
    async with limited(store, url, keys, **rate) as one, limited(store, url, keys, **rate) as two:
        assert [await read(one) for _ in range(5)] == [(404, "")] * 5
        status_code, again = await read(one)
        assert (status_code, 60 < int(again) <= 100) == (429, True)
        assert await read(one, "another") == (404, "")
        [bucket] = [key async for key in store.redis.scan_iter(keys.requests(Scope()))]
        assert 0 < await store.redis.pttl(bucket) <= 500_000
        full = int(await store.redis.get(bucket))
        await store.redis.set(bucket, full - 100_000_000, px=500_000)  # a hundred seconds later

        assert [(await read(two))[0] for _ in range(2)] == [404, 429]


async def test_a_flood_does_not_reach_the_store(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> None:
    async with limited(store, redis_server.store_url, keys, owner_requests_per_second=0.01) as gateway:
        assert [(await read(gateway))[0] for _ in range(2)] == [404, 429]
        await store.redis.delete(keys.requests(Scope()))

        assert [(await read(gateway))[0] for _ in range(20)] == [429] * 20
        assert not await store.redis.exists(keys.requests(Scope()))
        assert (await read(gateway, "another"))[0] == 404


async def test_without_limits_nothing_is_asked_of_the_store(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    async with limited(store, redis_server.store_url, keys) as gateway:
        await gateway.sent()
        card = await gateway.http.get("/.well-known/agent-card.json")

    assert card.status_code == 200
    assert not [key for key in await seeds.everything() if ":requests:" in key or ":queue:" in key]


async def test_the_wait_is_told_by_how_long_runs_take(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    async with limited(store, redis_server.store_url, keys, owner_max_concurrent_tasks=2) as gateway:
        for took in (30, 50):  # of which there are two at a time
            claim = await seeds.claimed(scope=NOBODY)
            record = keys.task(claim.ref.task_id).record
            await store.redis.hincrby(record, "claimed_at", -took * 1_000_000)
            await seeds.settled(claim, status(COMPLETED))
        for _ in range(2):
            await seeds.created(NOBODY, context_id=CONTEXT)

        answer = await gateway.try_to_send()

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "21")


async def test_a_store_that_is_away_is_asked_once(
    redis_server: EmbeddedRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch, store: AsyncStore
) -> None:
    asked: list[str] = []

    async def away(_: AsyncStore, operation: Operation[object]) -> object:
        asked.append(operation.script.name)
        raise StoreUnavailable("away")

    async with limited(store, redis_server.store_url, keys, owner_requests_per_second=1) as gateway:
        monkeypatch.setattr(AsyncStore, "run", away)
        answers = [await gateway.http.get("/tasks/none", headers={"A2A-Version": "1.0"}) for _ in range(3)]
        card = await gateway.http.get("/extendedAgentCard", headers={"A2A-Version": "1.0"})

    assert [answer.status_code for answer in answers] == [503] * 3, "as without limits, and not later"
    assert asked == ["take_request"] * 3
    assert card.status_code == 400, "it has none"


LONG = "x" * 257


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", f"/tasks/{LONG}", "id"),
        ("POST", f"/tasks/{LONG}:cancel", "id"),
        ("POST", f"/tasks/{LONG}:subscribe", "id"),
        ("GET", f"/tasks?contextId={LONG}", "context_id"),
        ("GET", f"/tasks?pageToken={LONG * 4}", "page_token"),
        ("GET", f"/agents/echo/{LONG}/tasks", "tenant"),
        ("GET", f"/tasks/{LONG}/pushNotificationConfigs", "task_id"),
        ("GET", f"/tasks/t/pushNotificationConfigs/{LONG}", "id"),
    ],
)
async def test_a_name_that_is_too_long_is_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, method: str, path: str, field: str
) -> None:
    async with limited(store, redis_server.store_url, keys) as gateway:
        answer = await gateway.http.request(method, path, headers={"A2A-Version": "1.0"})

    assert answer.status_code == 400
    [violation] = answer.json()["error"]["details"][1]["fieldViolations"]
    assert violation["field"] == field
    assert violation["description"].startswith("At most ")


@pytest.mark.parametrize(
    "many",
    [
        {"parts": [{"text": ""}] * 100_001},
        {"parts": [{"text": "x"}], "extensions": ["x"] * 100_001},
        {"parts": [{"text": "x", "metadata": {"x": [0] * 100_001}}]},
        {"parts": [{"text": "x"}], "metadata": {str(n): 0 for n in range(100_001)}},
    ],
    ids=["parts", "extensions", "values", "keys"],
)
async def test_over_grpc_too_a_message_has_an_end(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, many: dict[str, Any]
) -> None:
    request = ParseDict(message_json(**many), SendMessageRequest())
    async with (
        limited(store, redis_server.store_url, keys) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=GRPC_V1, timeout=30)

    assert list(from_grpc(raised.value).fields) == ["message.parts"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_message_packed_small_is_measured_unpacked(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, version: str
) -> None:
    async with limited(store, redis_server.store_url, keys, max_request_bytes=100_000) as gateway:
        before = await seeds.everything()
        found = await gateway.refusal("GRPC", version, "SendMessage", message_json("x" * 200_000), packed=True)

        assert found.status == "RESOURCE_EXHAUSTED"
        assert await seeds.everything() == before


BODIES = [
    ("GET", "/tasks/none:subscribe"),
    ("GET", "/acme/tasks/none:subscribe"),
    ("GET", "/v1/tasks/none:subscribe"),
    ("DELETE", "/tasks/none/pushNotificationConfigs/none"),
]


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_a_body_that_nobody_asked_for_is_bounded_too(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, method: str, path: str
) -> None:
    read = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal read
        while read < 100:
            read += 1
            yield b"x" * 10_000

    async with limited(store, redis_server.store_url, keys, max_request_bytes=100_000) as gateway:
        version = "0.3" if path.startswith("/v1") else "1.0"
        answer = await gateway.http.request(method, path, content=endless(), headers={"A2A-Version": version})

    assert answer.status_code == 413
    assert read == 11, "what is beyond is not read"
