"""Gate of a gateway: reads and heavy work of an owner, in every binding."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import grpc.aio
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc, conversions, proto_utils
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    a2a_pb2_grpc,
)

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings import rest
from a2a_celery.gateway.gate import (
    BREAK,
    BYTES_PER_REQUEST,
    HEAVY_WAIT,
    MAX_READS,
    MAX_VALIDATIONS,
    MAX_WAITING,
    SMALL,
    VALUES_PER_BREAK,
    WORK_SHARE,
    Gate,
    count_value,
)
from a2a_celery.gateway.metrics import Metrics
from a2a_celery.gateway.operations.task_reader import TaskReader
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim
from tests.support.clients.bindings import GRPC_V1, V1
from tests.support.clocks import ManualClock
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.processes.loops import counted_turns
from tests.support.store.seeds import Seeds, chunk, status
from tests.support.waiting import LIMIT, eventually_async

SCOPE, ANN, BOB = Scope("echo"), Scope(owner="ann"), Scope(owner="bob")
TOKEN_SECONDS = 100
SLOW = {"owner_requests_per_second": 1 / TOKEN_SECONDS, "owner_request_burst": 100}
"""Rate limit at which no token returns during a test."""

LARGE_TEXT = "x" * 32 * SMALL
VALUES = 2_000
"""Number of values of a result that is large because of its values."""

V03 = {"A2A-Version": "0.3"}
Read = Callable[[LocalGateway, str], Awaitable[Any]]


def gate_of(store: AsyncStore, keys: Keys, **settings: Any) -> Gate:
    """Return a gate without a gateway."""
    return Gate(Settings(**settings), store, keys, ["echo"], Metrics(store, keys, {}))


class Work:
    """Heavy work whose ends the test controls.

    Attributes:
        begun: Names of the pieces of work that have begun, in order.
        threads: Names of the threads in which they have run.
    """

    def __init__(self, gate: Gate) -> None:
        self.begun: list[str] = []
        self.threads: set[str] = set()
        self._gate = gate
        self._permits = threading.Semaphore(0)

    def start(self, scope: Scope, name: str) -> asyncio.Task[str]:
        """Start work of the owner of `scope`."""

        def work() -> str:
            self.begun.append(name)
            self.threads.add(threading.current_thread().name)
            self._permits.acquire()
            return name

        return asyncio.create_task(self._gate.work(scope, work))

    def end(self, count: int = 1) -> None:
        """Let the next `count` pieces of work end."""
        self._permits.release(count)

    async def until_begun(self, *names: str) -> None:
        """Wait until exactly the pieces of work `names` have begun, in this order."""

        async def have_begun() -> bool:
            return self.begun == list(names)

        await eventually_async(have_begun, what=f"{names} have begun")


@pytest.fixture
async def work(store: AsyncStore, keys: Keys) -> AsyncIterator[Work]:
    gate = gate_of(store, keys)
    work = Work(gate)
    yield work
    work.end(100)
    gate.close()


async def test_the_work_of_an_owner_does_not_delay_another_owner(work: Work) -> None:
    first = work.start(ANN, "first")
    await work.until_begun("first")
    others = [work.start(ANN, f"other {number}") for number in range(9)]
    await asyncio.sleep(0)
    of_bob = work.start(BOB, "of bob")
    await work.until_begun("first", "of bob")

    work.end(11)

    assert await asyncio.gather(first, of_bob, *others) == ["first", "of bob", *(f"other {n}" for n in range(9))]
    assert work.begun[2:] == [f"other {number}" for number in range(9)], "one after the other, in order"
    assert work.threads <= {"a2a-heavy-0", "a2a-heavy-1"}, "the default executor also looks up names"


async def test_the_work_of_a_client_that_has_disconnected_does_not_begin(work: Work) -> None:
    running, waiting = work.start(ANN, "running"), work.start(ANN, "waiting")
    await work.until_begun("running")
    running.cancel()
    waiting.cancel()
    await asyncio.wait([running, waiting])

    last = work.start(ANN, "last")
    await asyncio.sleep(0)
    assert work.begun == ["running"], "the running work still occupies its owner"
    work.end(2)

    assert await last == "last"
    assert work.begun == ["running", "last"]


def busy(seconds: float, begun: list[float]) -> None:
    """Use `seconds` of CPU time, and add the time of the beginning to `begun`."""
    begun.append(time.monotonic())
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize("way", ["at once", "in sequence", "failing"])
async def test_with_a_rate_limit_the_work_of_an_owner_takes_a_share_of_the_time(
    store: AsyncStore, keys: Keys, way: str
) -> None:
    gate = gate_of(store, keys, owner_requests_per_second=1)
    begun: list[float] = []

    def fail() -> None:
        busy(0.05, begun)
        raise ValueError("not JSON")

    function = fail if way == "failing" else partial(busy, 0.05, begun)
    if way == "in sequence":
        for _ in range(2):
            await gate.work(ANN, function)
            gc.collect()
    else:
        await asyncio.gather(gate.work(ANN, function), gate.work(ANN, function), return_exceptions=True)
    gate.close()

    assert begun[1] - begun[0] >= 0.05 / WORK_SHARE * 0.95


def count_values(number: int) -> None:
    for _ in range(number):
        count_value()


async def test_work_with_many_values_takes_breaks(store: AsyncStore, keys: Keys) -> None:
    gate, breaks = gate_of(store, keys), 5
    began = time.monotonic()
    await gate.work(ANN, count_values, breaks * VALUES_PER_BREAK)
    assert time.monotonic() - began >= breaks * BREAK

    began = time.monotonic()
    count_values(1_000 * VALUES_PER_BREAK)  # on the event loop
    assert time.monotonic() - began < 1_000 * BREAK


async def test_requests_that_ignore_retry_after_are_accepted_one_by_one(store: AsyncStore, keys: Keys) -> None:
    clock = ManualClock()
    settings = Settings(owner_requests_per_second=10, owner_request_burst=1)
    gate = Gate(settings, store, keys, ["echo"], Metrics(store, keys, {}), clock)
    await gate.count_request("echo", ANN)
    with pytest.raises(LimitExceededError):
        await gate.count_request("echo", ANN)

    clock.advance(0.2)  # a token has returned, although Retry-After is a second

    await gate.require_token("echo", "ann")


async def test_short_work_does_not_wait_for_a_timer(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys, owner_requests_per_second=1)
    timers: list[object] = []
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", lambda *args: timers.append(args))
        for _ in range(3):
            await gate.work(ANN, int)
    gate.close()

    assert timers == []


async def test_with_a_rate_limit_large_transfers_of_an_owner_wait(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys, owner_requests_per_second=10)
    began = time.monotonic()

    await gate.pace(ANN, BYTES_PER_REQUEST)
    await gate.pace(BOB, BYTES_PER_REQUEST)
    await gate.pace(ANN, SMALL)
    first = time.monotonic() - began
    gc.collect()
    await gate.pace(ANN, BYTES_PER_REQUEST)
    second = time.monotonic() - began
    unlimited = gate_of(store, keys)
    for _ in range(100):
        await unlimited.pace(ANN, 1000 * BYTES_PER_REQUEST)

    assert first < second
    assert second >= 0.1 * 0.95


async def test_a_large_result_is_measured_without_blocking_the_event_loop(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys, owner_requests_per_second=1_000_000)
    task = Task(id="t", history=[Message(message_id=str(n), parts=[Part(text="x" * 2 * SMALL)]) for n in range(20)])

    async with counted_turns() as count:
        await gate.pace_result(ANN, task)
        turns = count.turns

    assert turns >= 20


async def test_failed_work_leaves_no_cycle(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys)

    class Body:
        """Argument of the work."""

    def fail(body: Body) -> None:
        raise ValueError("not JSON")

    gc.disable()
    try:
        body = Body()
        alive = weakref.ref(body)
        with suppress(ValueError):
            await gate.work(ANN, fail, body)
        del body

        async def is_gone() -> bool:
            return alive() is None

        await eventually_async(is_gone, what="the argument is gone")
    finally:
        gc.enable()
        gate.close()


async def test_the_number_of_an_owners_answers_is_limited(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys)
    may_end = threading.Event()
    checks = [asyncio.create_task(gate.validate("echo", ANN, may_end.wait)) for _ in range(MAX_VALIDATIONS)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceededError) as exc_info:
        await gate.validate("echo", ANN, int)
    of_bob = await gate.validate("echo", BOB, int)
    may_end.set()
    await asyncio.gather(*checks)

    assert (exc_info.value.data, of_bob) == ({"limit": "answers", "retryAfter": str(HEAVY_WAIT)}, 0)
    assert await gate.validate("echo", ANN, int) == 0
    gate.close()


async def test_work_after_the_end_of_the_threads_starts_new_threads(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys)
    assert await gate.work(ANN, int) == 0
    gate.close()

    assert await gate.work(ANN, int) == 0
    gate.close()


async def test_reads_of_an_owner_are_bounded_and_wait_in_order(store: AsyncStore, keys: Keys) -> None:
    gate = gate_of(store, keys)
    reads = [await gate.begin_read("echo", ANN) for _ in range(MAX_READS)]
    waiting = [asyncio.create_task(gate.begin_read("echo", ANN)) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    of_bob = await gate.begin_read("echo", BOB)
    with pytest.raises(LimitExceededError) as exc_info:
        await gate.begin_read("echo", ANN)

    assert exc_info.value.data == {"limit": "reads", "retryAfter": str(HEAVY_WAIT)}
    assert not any(task.done() for task in waiting)
    for end_read in (of_bob, *reads[:2]):
        end_read()
    await asyncio.wait(waiting[:2])
    assert [task.done() for task in waiting[:3]] == [True, True, False]
    for task in waiting[2:]:
        task.cancel()
    await asyncio.wait(waiting)
    for end_read in (*reads[2:], *(task.result() for task in waiting[:2])):
        end_read()
    assert [await gate.begin_read("echo", ANN) for _ in range(MAX_READS)], "cancelled waits do not count"


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway with a rate limit, without a worker."""
    async with local_gateway(store, redis_server.store_url, keys, **SLOW) as gateway:
        yield gateway


@pytest.fixture
async def unlimited_gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway without a rate limit and without a worker, so that no transfer waits."""
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
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


@pytest.mark.parametrize(
    "content", [{"text": LARGE_TEXT}, {"values": VALUES}, {"text": "small"}], ids=["large text", "values", "small"]
)
@pytest.mark.parametrize("read_once", READS.values(), ids=list(READS))
async def test_a_read_takes_one_token(
    gateway: LocalGateway, seeds: Seeds, read_once: Read, content: dict[str, Any]
) -> None:
    task_id = await complete_task(seeds, **content)

    await read_once(gateway, task_id)

    assert await spent_tokens(gateway) == 1


def surround_reads(
    monkeypatch: pytest.MonkeyPatch, around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
) -> None:
    """Call `around` for each read of a task or a page, with the function that reads it."""
    for name in ("read", "page"):
        read = getattr(TaskReader, name)

        async def surrounded(self: TaskReader, *args: Any, read: Any = read, **options: Any) -> Any:
            return await around(partial(read, self, *args, **options))

        monkeypatch.setattr(TaskReader, name, surrounded)


@pytest.mark.parametrize("reader", READS)
async def test_few_tasks_of_an_owner_are_read_at_once(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    seeds: Seeds,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    task_id = await complete_task(seeds, text=LARGE_TEXT)
    reading, most = 0, 0
    all_wait = asyncio.Event()

    async def record(read: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            await all_wait.wait()
            return await read()
        finally:
            reading -= 1

    surround_reads(monkeypatch, record)
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        reads = [asyncio.create_task(READS[reader](gateway, task_id)) for _ in range(2 * MAX_READS)]

        async def some_read() -> bool:
            return reading == MAX_READS

        await eventually_async(some_read, what="the first tasks are read")
        all_wait.set()
        await asyncio.gather(*reads)

    assert most == MAX_READS


@pytest.mark.parametrize("reader", [name for name in READS if not name.startswith("gRPC")])
async def test_a_read_ends_when_its_result_is_written(
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    seeds: Seeds,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    task_id = await complete_task(seeds, text=LARGE_TEXT)
    reads, may_write, work = [], asyncio.Event(), Gate.work

    async def record(self: Gate, *args: Any) -> Any:
        await may_write.wait()
        return await work(self, *args)

    async def record_read(read: Callable[[], Awaitable[Any]]) -> Any:
        reads.append(read)
        return await read()

    monkeypatch.setattr(Gate, "work", record)
    surround_reads(monkeypatch, record_read)
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        responses = [asyncio.create_task(READS[reader](gateway, task_id)) for _ in range(2 * MAX_READS)]

        async def all_wait() -> bool:
            return len(reads) == MAX_READS

        await eventually_async(all_wait, what="the first tasks are read")
        for _ in range(100):
            await asyncio.sleep(0)
        reads_before = len(reads)
        may_write.set()
        await asyncio.gather(*responses)

    assert (reads_before, len(reads)) == (MAX_READS, 2 * MAX_READS)


async def test_a_client_that_disconnects_during_a_read_ends_it(
    unlimited_gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await complete_task(seeds, text="small")
    reading: list[str] = []

    async def never(*_: object, **__: object) -> Any:
        reading.append("")
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(TaskReader, "read", never)
        calls = [
            asyncio.create_task(unlimited_gateway.http.get(f"/tasks/{task_id}", headers=V1))
            for _ in range(MAX_READS + 2)
        ]

        async def all_read() -> bool:
            return len(reading) == MAX_READS

        await eventually_async(all_read, what="the first tasks are read")
        for call in reversed(calls):
            call.cancel()
        await asyncio.wait(calls)

    async with asyncio.timeout(30):
        await JSON_READS["GetTask"](unlimited_gateway, task_id)


async def test_a_response_that_cannot_be_written_ends_its_read(
    unlimited_gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bytes:
        raise ValueError("JSON has no nan")

    task_id = await complete_task(seeds, text=LARGE_TEXT)
    with monkeypatch.context() as patch:
        patch.setattr(rest, "write_result", fails)
        refusals = [await unlimited_gateway.http.get(f"/tasks/{task_id}", headers=V1) for _ in range(MAX_READS + 1)]
    missing = [await unlimited_gateway.http.get("/tasks/none", headers=V1) for _ in range(MAX_READS + 1)]

    async with asyncio.timeout(30):
        await JSON_READS["GetTask"](unlimited_gateway, task_id)
    assert [response.status_code for response in refusals] == [500] * (MAX_READS + 1)
    assert [response.status_code for response in missing] == [404] * (MAX_READS + 1)


@pytest.mark.parametrize("reader", ["0.3 GetTask", "0.3 JSON-RPC GetTask", "0.3 JSON-RPC replay"])
async def test_a_large_result_of_the_older_protocol_is_converted_in_a_thread(
    gateway: LocalGateway, seeds: Seeds, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    threads: list[str] = []
    convert = conversions.to_compat_stream_response

    def record(response: StreamResponse, request_id: Any) -> Any:
        if (response.ByteSize() > SMALL) is is_large:
            threads.append(threading.current_thread().name)
        return convert(response, request_id)

    monkeypatch.setattr(conversions, "to_compat_stream_response", record)
    is_large = False
    await JSON_READS[reader](gateway, await complete_task(seeds, text="small"))
    assert set(threads) == {threading.current_thread().name}

    threads.clear()
    is_large = True
    await JSON_READS[reader](gateway, await complete_task(seeds, values=VALUES))

    assert {name[:-1] for name in threads} == {"a2a-heavy-"}


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
    await JSON_READS[reader](gateway, await complete_task(seeds, values=VALUES))

    assert {name[:-1] for name in threads} == {"a2a-heavy-"}


async def test_subscriptions_that_wait_for_news_let_others_read(unlimited_gateway: LocalGateway, seeds: Seeds) -> None:
    claim = await claim_with_artifact(seeds, text=LARGE_TEXT)
    path = f"/tasks/{claim.ref.task_id}:subscribe"
    async with unlimited_gateway.serve() as http, AsyncExitStack() as stack:
        first = await stack.enter_async_context(http.stream("GET", path, headers=V1))
        newest = await anext(line.removeprefix("id: ") async for line in first.aiter_lines() if line.startswith("id"))
        for _ in range(2 * MAX_READS):
            waiting = http.stream("GET", path, headers={**V1, "Last-Event-ID": newest}, timeout=None)
            await stack.enter_async_context(waiting)

        assert (await unlimited_gateway.http.get(f"/tasks/{claim.ref.task_id}", headers=V1)).status_code == 200
