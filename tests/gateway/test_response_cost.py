"""Cost of large responses, which take tokens from the rate limit of their owner in every binding."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc, conversions, proto_utils
from a2a.types import GetTaskRequest, ListTasksRequest, StreamResponse, SubscribeToTaskRequest, a2a_pb2_grpc

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings import rest
from a2a_celery.gateway.metrics import Metrics
from a2a_celery.gateway.operations.limits import (
    BYTES_PER_TOKEN,
    LARGE_RESULT,
    UNPAID_READS,
    VALUES_PER_TOKEN,
    BodyCharge,
    OwnerLimits,
    ResponseMeter,
)
from a2a_celery.gateway.operations.task_reader import TaskReader
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.tasks.commands import MAX_DEBT
from tests.support.clients.bindings import GRPC_V1, V1, message_json
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.store.seeds import Seeds, chunk, status
from tests.support.waiting import LIMIT, eventually_async

SCOPE = Scope("echo")
TOKEN_SECONDS = 100
SLOW = {"owner_requests_per_second": 1 / TOKEN_SECONDS, "owner_request_burst": 100}
"""Rate limit at which no token returns during a test."""

V03 = {"A2A-Version": "0.3"}
Read = Callable[[LocalGateway, str], Awaitable[Any]]


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway with a rate limit, without a worker."""
    async with local_gateway(store, redis_server.store_url, keys, **SLOW) as gateway:
        yield gateway


async def spent_tokens(gateway: LocalGateway) -> int:
    """Return the number of tokens that the anonymous owner has spent."""
    full_at = int(await gateway.store.redis.get(gateway.keys.requests(Scope())) or 0)
    seconds, microseconds = await gateway.store.redis.time()
    return round((full_at / 1e6 - seconds - microseconds / 1e6) / TOKEN_SECONDS)


async def claim_with_artifact(seeds: Seeds, text: str = "", values: int = 0) -> Claim:
    """Claim a run and write an artifact with `text` and `values` values."""
    claim = await seeds.claim_run(scope=SCOPE)
    await seeds.append_events(claim, chunk(text, append=False, zeros=[0] * values))
    return claim


async def complete_task(seeds: Seeds, text: str = "", values: int = 0) -> str:
    """Create a completed task that has an artifact with `text` and `values` values."""
    claim = await claim_with_artifact(seeds, text, values)
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    return claim.ref.task_id


def http_read(path: str, **headers: str) -> Read:
    """Return a function that sends a GET request for a task."""

    async def get_task(gateway: LocalGateway, task_id: str) -> None:
        response = await gateway.http.get(path.format(task_id), headers=V1 | headers)
        assert (response.status_code, task_id in response.text) == (200, True)

    return get_task


def rpc_read(method: str, version: str = "1.0", **headers: str) -> Read:
    """Return a function that sends a JSON-RPC request for a task."""

    async def call_get_task(gateway: LocalGateway, task_id: str) -> None:
        params = {"includeArtifacts": True} if method == "ListTasks" else {"id": task_id}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = await gateway.http.post("/", json=body, headers=headers | {"A2A-Version": version})
        assert (response.status_code, task_id in response.text) == (200, True)
        assert '"error"' not in response.text

    return call_get_task


async def get_over_grpc(gateway: LocalGateway, task_id: str) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.GetTask(GetTaskRequest(id=task_id), metadata=GRPC_V1, timeout=LIMIT)


async def list_over_grpc(gateway: LocalGateway, task_id: str) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.ListTasks(ListTasksRequest(include_artifacts=True), metadata=GRPC_V1, timeout=LIMIT)


async def replay_over_grpc(gateway: LocalGateway, task_id: str) -> None:
    metadata = (*GRPC_V1, ("last-event-id", "0"))
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.SubscribeToTask(SubscribeToTaskRequest(id=task_id), metadata=metadata, timeout=LIMIT)
        assert [event async for event in call]


async def get_over_older_grpc(gateway: LocalGateway, task_id: str) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub: Any = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.GetTask(a2a_v0_3_pb2.GetTaskRequest(name=f"tasks/{task_id}"), timeout=LIMIT)


REPLAY = {"Last-Event-ID": "0"}
JSON_READS = {
    "GetTask": http_read("/tasks/{}"),
    "ListTasks": http_read("/tasks?includeArtifacts=true"),
    "replay": http_read("/tasks/{}:subscribe", **REPLAY),
    "JSON-RPC GetTask": rpc_read("GetTask"),
    "JSON-RPC ListTasks": rpc_read("ListTasks"),
    "JSON-RPC replay": rpc_read("SubscribeToTask", **REPLAY),
    "0.3 GetTask": http_read("/v1/tasks/{}", **V03),
    "0.3 replay": http_read("/v1/tasks/{}:subscribe", **V03, **REPLAY),
    "0.3 JSON-RPC GetTask": rpc_read("tasks/get", "0.3"),
    "0.3 JSON-RPC replay": rpc_read("tasks/resubscribe", "0.3", **REPLAY),
}
READS = {
    **JSON_READS,
    "gRPC GetTask": get_over_grpc,
    "gRPC ListTasks": list_over_grpc,
    "gRPC replay": replay_over_grpc,
    "0.3 gRPC GetTask": get_over_older_grpc,
}


@pytest.mark.parametrize("read_once", READS.values(), ids=list(READS))
async def test_the_bytes_of_a_response_take_tokens(gateway: LocalGateway, seeds: Seeds, read_once: Read) -> None:
    task_id = await complete_task(seeds, text="x" * 4 * BYTES_PER_TOKEN)

    await read_once(gateway, task_id)

    assert await spent_tokens(gateway) == 5


@pytest.mark.parametrize("read_once", JSON_READS.values(), ids=list(JSON_READS))
async def test_the_values_of_a_response_take_tokens(gateway: LocalGateway, seeds: Seeds, read_once: Read) -> None:
    task_id = await complete_task(seeds, values=4 * VALUES_PER_TOKEN)

    await read_once(gateway, task_id)

    assert await spent_tokens(gateway) == 5


@pytest.mark.parametrize("read_once", READS.values(), ids=list(READS))
async def test_a_small_response_takes_one_token(gateway: LocalGateway, seeds: Seeds, read_once: Read) -> None:
    task_id = await complete_task(seeds, text="x" * (LARGE_RESULT // 2))

    await read_once(gateway, task_id)

    assert await spent_tokens(gateway) == 1


async def test_a_task_at_the_start_of_a_stream_takes_tokens_and_its_new_events_take_none(
    gateway: LocalGateway, seeds: Seeds
) -> None:
    claim = await claim_with_artifact(seeds, text="x" * 4 * BYTES_PER_TOKEN)
    async with gateway.serve() as http, http.stream("GET", f"/tasks/{claim.ref.task_id}:subscribe", headers=V1) as new:
        lines = new.aiter_lines()
        assert claim.ref.task_id in await anext(line async for line in lines if line.startswith("data"))
        at_start = await spent_tokens(gateway)
        large = chunk("y" * 4 * BYTES_PER_TOKEN, zeros=[0] * 4 * VALUES_PER_TOKEN)
        await seeds.settle_run(claim, large, status(COMPLETED), written_count=1)
        rest_of_stream = [line async for line in lines]

    assert "TASK_STATE_COMPLETED" in "".join(rest_of_stream)
    assert (at_start, await spent_tokens(gateway)) == (5, 5)


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
[RATE] = (float(rate) for rate in re.findall(r"A2A_OWNER_REQUESTS_PER_SECOND=(\d+)", PAGE))
"""Rate in the example of docs/limits.md. There is no limit by default."""


async def test_a_stream_of_many_small_chunks_takes_one_token(gateway: LocalGateway, seeds: Seeds) -> None:
    claim = await seeds.claim_run(scope=SCOPE)
    async with gateway.serve() as http, http.stream("GET", f"/tasks/{claim.ref.task_id}:subscribe", headers=V1) as new:
        lines = new.aiter_lines()
        await anext(lines)
        for number in range(0, 2_000, 1_000):
            await seeds.append_events(claim, *[chunk("word ")] * 1_000, written_count=number)
        await seeds.settle_run(claim, status(COMPLETED), written_count=2_000)
        events = [line async for line in lines if line.startswith("data")]

    assert sum(map(len, events)) > 4 * BYTES_PER_TOKEN
    assert len(events) > 2_000
    assert await spent_tokens(gateway) == 1


async def test_a_task_of_100_kib_can_be_polled_each_second(gateway: LocalGateway, seeds: Seeds) -> None:
    task_id = await complete_task(seeds, text="x" * 100 * 1024)

    await JSON_READS["GetTask"](gateway, task_id)

    assert await spent_tokens(gateway) <= RATE


async def test_a_response_is_delivered_and_the_next_request_is_refused_until_it_is_paid(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    task_id = await complete_task(seeds, values=4 * VALUES_PER_TOKEN)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 2}
    async with (
        local_gateway(store, redis_server.store_url, keys, **rate) as first_gateway,
        local_gateway(store, redis_server.store_url, keys, **rate) as second_gateway,
    ):
        first = await first_gateway.http.get(f"/tasks/{task_id}", headers=V1)
        responses = [
            await gateway.http.get(f"/tasks/{task_id}", headers=V1) for gateway in (first_gateway, second_gateway)
        ]

    [artifact] = first.json()["artifacts"]
    assert artifact["metadata"] == {"zeros": [0] * 4 * VALUES_PER_TOKEN}
    assert [response.status_code for response in responses] == [429, 429], "in every gateway"
    assert all(30 < int(response.headers["retry-after"]) <= 40 for response in responses), (
        "two tokens less five, and one"
    )


async def test_a_debt_is_bounded(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds) -> None:
    task_id = await complete_task(seeds, text="x" * 40 * BYTES_PER_TOKEN)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 2}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway:
        statuses = [(await gateway.http.get(f"/tasks/{task_id}", headers=V1)).status_code]
        refusal = await gateway.http.get(f"/tasks/{task_id}", headers=V1)

    assert [*statuses, refusal.status_code] == [200, 429]
    assert MAX_DEBT < int(refusal.headers["retry-after"]) <= MAX_DEBT + 10, "the debt, and the next token"


async def test_of_large_responses_at_once_one_is_written_and_the_next_one_waits_for_its_payment(
    store: AsyncStore, keys: Keys
) -> None:
    settings = Settings(owner_requests_per_second=0.1, owner_request_burst=2)
    limits = OwnerLimits(settings, store, keys, ["echo"], Metrics(store, keys, {}))
    ann, bob = Scope(owner="ann"), Scope(owner="bob")
    meters = [ResponseMeter() for _ in range(4)]
    await meters[0].begin(limits, ann, LARGE_RESULT + 1)
    second = asyncio.create_task(meters[1].begin(limits, ann, LARGE_RESULT + 1))
    await meters[2].begin(limits, bob, LARGE_RESULT + 1)
    await meters[3].begin(limits, ann, LARGE_RESULT)

    assert not second.done()
    meters[0].add_values(4 * VALUES_PER_TOKEN)
    await meters[0].pay()

    await second  # its operation was executed before the payment
    await meters[1].pay()
    with pytest.raises(LimitExceededError):  # it takes its token before the payment, and would read after it
        await ResponseMeter().take_turn(limits, "echo", ann)
    await ResponseMeter().begin(limits, ann, LARGE_RESULT + 1)


async def test_an_executed_message_is_answered_after_another_response_leaves_a_debt(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    large_task = await complete_task(seeds, text="x" * 40 * BYTES_PER_TOKEN)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 5}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway:
        send = asyncio.create_task(gateway.http.post("/message:send", json=message_json(), headers=V1))

        async def accepted() -> set[bytes]:
            return {await store.redis.hget(key, "task_id") async for key in store.redis.scan_iter("*:task")} - {
                large_task.encode()
            }

        [task_id] = [name.decode() for name in await eventually_async(accepted)]
        claim = await seeds.claim_run(task_id)
        read = await gateway.http.get(f"/tasks/{large_task}", headers=V1)
        await seeds.append_events(claim, chunk("y" * 2 * LARGE_RESULT, append=False))
        await seeds.settle_run(claim, status(COMPLETED), written_count=1)
        response = await send
        refusal = await gateway.http.get(f"/tasks/{task_id}", headers=V1)

    assert [read.status_code, response.status_code, refusal.status_code] == [200, 200, 429]
    assert response.json()["task"]["id"] == task_id


async def test_lists_at_once_are_read_one_after_another(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    await complete_task(seeds, values=20 * VALUES_PER_TOKEN)
    reads: list[int] = []
    page = TaskReader.page

    async def record(self: TaskReader, *args: Any) -> Any:
        reads.append(len(reads))
        return await page(self, *args)

    monkeypatch.setattr(TaskReader, "page", record)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 10}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway:
        path = "/tasks?includeArtifacts=true"
        answers = await asyncio.gather(*(gateway.http.get(path, headers=V1) for _ in range(10)))

    assert sorted(answer.status_code for answer in answers) == [200] + [429] * 9
    assert reads == [0], "what is refused is not read"


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the ids of the tasks that the gateway reads."""
    reads: list[str] = []
    read_task = TaskReader.read

    async def record(self: TaskReader, scope: Scope, task_id: str, **options: Any) -> Any:
        reads.append(task_id)
        return await read_task(self, scope, task_id, **options)

    monkeypatch.setattr(TaskReader, "read", record)
    return reads


BURSTS = ["GetTask", "JSON-RPC GetTask", "0.3 GetTask", "gRPC GetTask", "replay", "JSON-RPC replay", "gRPC replay"]


@pytest.mark.parametrize("reader", BURSTS)
async def test_of_a_burst_few_large_tasks_are_read_before_the_first_is_paid(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    seeds: Seeds,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    task_id = await complete_task(seeds, text="x" * 40 * BYTES_PER_TOKEN)
    reads = recorded_reads(monkeypatch)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 20}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway:
        answers = await asyncio.gather(*(READS[reader](gateway, task_id) for _ in range(20)), return_exceptions=True)

    assert len([answer for answer in answers if answer is None]) == len(reads), "a read is answered"
    assert 1 <= len(reads) <= UNPAID_READS, "a refused request reads nothing"


async def test_small_tasks_at_once_are_all_read(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds
) -> None:
    task_id = await complete_task(seeds, text="small")
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 20}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway:
        paths = [f"/tasks/{task_id}", "/tasks/none"] * 10
        answers = await asyncio.gather(*(gateway.http.get(path, headers=V1) for path in paths))

    assert [answer.status_code for answer in answers] == [200, 404] * 10


async def test_a_response_that_cannot_be_written_lets_the_next_one_be_written(
    gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> list[bytes]:
        raise ValueError("JSON has no nan")

    task_id = await complete_task(seeds, text="x" * 2 * LARGE_RESULT)
    with monkeypatch.context() as patch:
        patch.setattr(rest, "task_json", fails)
        refusal = await gateway.http.get(f"/tasks/{task_id}", headers=V1)

    async with asyncio.timeout(30):
        await JSON_READS["GetTask"](gateway, task_id)
    assert refusal.status_code == 500


async def test_a_cancelled_payment_of_a_body_lets_the_next_response_be_written(
    gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(charge: BodyCharge) -> None:
        raise asyncio.CancelledError

    task_id = await complete_task(seeds, text="x" * 2 * LARGE_RESULT)
    monkeypatch.setattr(BodyCharge, "settle", cancel)

    async with asyncio.timeout(30):
        reads = [gateway.http.get(f"/tasks/{task_id}", headers=V1) for _ in range(2)]
        outcomes = await asyncio.gather(*reads, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2, (
        "the second one did not wait forever"
    )


@pytest.mark.parametrize("reader", ["0.3 GetTask", "0.3 JSON-RPC GetTask", "0.3 JSON-RPC replay"])
async def test_a_large_result_of_the_older_protocol_is_converted_in_a_thread(
    gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    threads: list[str] = []
    convert = conversions.to_compat_stream_response

    def record(response: StreamResponse, request_id: Any) -> Any:
        if (response.ByteSize() > LARGE_RESULT) is is_large:
            threads.append(threading.current_thread().name)
        return convert(response, request_id)

    monkeypatch.setattr(conversions, "to_compat_stream_response", record)
    is_large = False
    await JSON_READS[reader](gateway, await complete_task(seeds, text="small"))
    assert set(threads) == {threading.current_thread().name}

    threads.clear()
    is_large = True
    await JSON_READS[reader](gateway, await complete_task(seeds, values=4 * VALUES_PER_TOKEN))

    assert set(threads) == {"a2a-parser_0"}


@pytest.mark.parametrize("reader", ["0.3 GetTask", "0.3 replay"])
async def test_a_large_result_is_written_as_json_of_the_older_protocol_in_a_thread(
    gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    threads: list[str] = []
    write = proto_utils.ToProto.artifact

    def record(artifact: Any) -> Any:
        threads.append(threading.current_thread().name)
        return write(artifact)

    monkeypatch.setattr(proto_utils.ToProto, "artifact", record)
    await JSON_READS[reader](gateway, await complete_task(seeds, values=4 * VALUES_PER_TOKEN))

    assert set(threads) == {"a2a-parser_0"}


async def test_a_burst_of_subscriptions_to_a_large_task_reads_few_tasks_before_the_first_is_paid(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await claim_with_artifact(seeds, text="x" * 40 * BYTES_PER_TOKEN)
    reads = recorded_reads(monkeypatch)
    rate = {"owner_requests_per_second": 0.1, "owner_request_burst": 20}
    async with local_gateway(store, redis_server.store_url, keys, **rate) as gateway, gateway.serve() as http:
        statuses: list[int] = []

        async def subscribe() -> None:
            path = f"/tasks/{claim.ref.task_id}:subscribe"
            async with http.stream("GET", path, headers=V1, timeout=None) as response:
                statuses.append(response.status_code)
                async for _ in response.aiter_lines():
                    pass

        async def others_refused() -> bool:
            return len(statuses) == 20

        async with asyncio.TaskGroup() as subscribers:
            for _ in range(20):
                subscribers.create_task(subscribe())
            await eventually_async(others_refused, what="the other subscriptions are refused or answered")
            await seeds.settle_run(claim, status(COMPLETED), written_count=1)

    assert statuses.count(200) == len(reads), "a read is answered"
    assert 1 <= len(reads) <= UNPAID_READS, "a refused request reads nothing"


async def test_subscriptions_that_wait_for_news_let_others_read(gateway: LocalGateway, seeds: Seeds) -> None:
    claim = await claim_with_artifact(seeds, text="x" * 4 * BYTES_PER_TOKEN)
    path = f"/tasks/{claim.ref.task_id}:subscribe"
    async with gateway.serve() as http, AsyncExitStack() as stack:
        first = await stack.enter_async_context(http.stream("GET", path, headers=V1))
        newest = await anext(line.removeprefix("id: ") async for line in first.aiter_lines() if line.startswith("id"))
        for _ in range(2 * UNPAID_READS):
            waiting = http.stream("GET", path, headers={**V1, "Last-Event-ID": newest}, timeout=None)
            await stack.enter_async_context(waiting)

        assert (await gateway.http.get(f"/tasks/{claim.ref.task_id}", headers=V1)).status_code == 200
