"""Resumed streams. A client receives the events after its last event, or the task if the store has lost that event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.types import StreamResponse, SubscribeToTaskRequest, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.bindings.json_results import event_json
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim
from tests.support.clients.bindings import GRPC_V1, V1, Frame, frames
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.store.seeds import Seeds, chunk, status
from tests.support.waiting import LIMIT

SCOPE = Scope("echo")
BINDINGS = ["HTTP+JSON", "JSONRPC", "JSONRPC 0.3", "GRPC"]


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    """Gateway with two agents, without a worker."""
    async with local_gateway(store, redis_server.store_url, keys) as gateway:
        yield gateway


async def over_rest(gateway: LocalGateway, task_id: str, last: str, method: str = "POST") -> httpx.Response:
    path = f"/tasks/{task_id}:subscribe"
    return await gateway.http.request(method, path, headers=V1 | {"Last-Event-ID": last})


async def resume(gateway: LocalGateway, binding: str, task_id: str, last: EventId | str) -> list[dict[str, Any]]:
    """Resume a stream after the event `last`, and return its remaining events."""
    if binding == "GRPC":
        metadata = (*GRPC_V1, ("last-event-id", str(last)))
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            call = stub.SubscribeToTask(SubscribeToTaskRequest(id=task_id), metadata=metadata, timeout=LIMIT)
            return [MessageToDict(event) async for event in call]
    if binding == "HTTP+JSON":
        answer = await over_rest(gateway, task_id, str(last))
        return [frame.data async for frame in frames(answer)]
    version, method = ("0.3", "tasks/resubscribe") if binding.endswith("0.3") else ("1.0", "SubscribeToTask")
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": task_id}}
    answer = await gateway.http.post("/", json=body, headers={"A2A-Version": version, "Last-Event-ID": str(last)})
    return [frame.data["result"] async for frame in frames(answer)]


async def write_chunks(seeds: Seeds, chunks: int) -> Claim:
    """Claim a run and append `chunks` chunks to its log."""
    claim = await seeds.claim_run(await seeds.create_task(scope=SCOPE), max_attempts=2)
    for number in range(chunks):
        await seeds.append_events(claim, chunk(str(number)), written_count=number)
    return claim


async def test_events_are_numbered_with_their_times(gateway: LocalGateway, store: AsyncStore, keys: Keys) -> None:
    seeds = Seeds(store, keys)
    claim = await write_chunks(seeds, 2)
    await seeds.settle_run(claim, status(COMPLETED), written_count=2)
    log = await seeds.log(claim.ref.task_id)

    first_frames: list[Frame] = [frame async for frame in frames(await over_rest(gateway, claim.ref.task_id, "0"))]

    assert [frame.id for frame in first_frames] == [f"{entry.version}-{entry.recorded_us}" for entry in log]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("extra_entries", [0, 2, 6], ids=["fewer events", "as many", "more"])
async def test_a_client_whose_last_event_is_lost_gets_the_task(
    gateway: LocalGateway, store: AsyncStore, keys: Keys, binding: str, extra_entries: int
) -> None:
    """The task ends before the client returns. The task's last version is lower than, equal to, or higher than the
    client's version."""
    seeds = Seeds(store, keys)
    claim = await write_chunks(seeds, 1)
    task_id = claim.ref.task_id
    backup = await seeds.backup()
    await seeds.append_events(claim, *(chunk(f"lost {n}") for n in range(3)), written_count=1)
    last_id = (await seeds.log(task_id))[-1].id
    await seeds.restore(backup)
    await seeds.settle_run(
        claim, *(chunk(f"other {n}") for n in range(extra_entries)), status(COMPLETED), written_count=1
    )
    task = await seeds.task(task_id)

    events = await resume(gateway, binding, task_id, last_id)

    assert last_id.version == 6
    assert len(events) == 1
    text = json.dumps(events)
    assert [text.count(f"other {n}") for n in range(extra_entries)] == [1] * extra_entries
    assert "lost" not in text
    if binding == "HTTP+JSON":
        assert events == [json.loads(event_json(task))]
    if binding == "GRPC":
        assert events == [MessageToDict(StreamResponse(task=task))]


async def test_a_stream_that_has_only_sent_the_task_sends_it_again(
    gateway: LocalGateway, store: AsyncStore, keys: Keys
) -> None:
    """The store loses the newest events of the task, and then records more events than it has lost."""
    seeds = Seeds(store, keys)
    claim = await write_chunks(seeds, 1)
    task_id = claim.ref.task_id
    before_loss = await seeds.backup()
    await seeds.settle_run(claim, *(chunk(f"other {n}") for n in range(5)), status(COMPLETED), written_count=1)
    after_loss = await seeds.backup()
    await seeds.restore(before_loss)
    await seeds.append_events(claim, *(chunk(f"lost {n}") for n in range(3)), written_count=1)

    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        call = aiter(stub.SubscribeToTask(SubscribeToTaskRequest(id=task_id), metadata=GRPC_V1, timeout=LIMIT))
        first = await anext(call)
        await seeds.restore(after_loss)
        await store.redis.publish(keys.task(task_id).notifications, "wake up")
        events = [first, *[event async for event in call]]

    texts = [[part.text for part in event.task.artifacts[0].parts] for event in events]
    assert [[text.count("lost"), text.count("other")] for [text] in texts] == [[3, 0], [0, 5]]
    assert events[-1].task == await seeds.task(task_id)


async def test_the_task_has_the_id_after_which_its_client_resumes(
    gateway: LocalGateway, store: AsyncStore, keys: Keys
) -> None:
    seeds = Seeds(store, keys)
    claim = await write_chunks(seeds, 1)
    task_id = claim.ref.task_id
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    newest = (await seeds.log(task_id))[-1].id
    another = str(newest._replace(recorded_us=newest.recorded_us - 1))

    [frame] = [frame async for frame in frames(await over_rest(gateway, task_id, another, "GET"))]
    end = await over_rest(gateway, task_id, frame.id, "GET")

    assert (frame.id, "task" in frame.data) == (str(newest), True)
    assert end.status_code == 204


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_version_alone_is_accepted_as_an_id(
    gateway: LocalGateway, store: AsyncStore, keys: Keys, binding: str
) -> None:
    seeds = Seeds(store, keys)
    claim = await write_chunks(seeds, 2)
    await seeds.settle_run(claim, status(COMPLETED), written_count=2)
    log = await seeds.log(claim.ref.task_id)

    for entry in log:
        rest = await resume(gateway, binding, claim.ref.task_id, entry.id)
        assert await resume(gateway, binding, claim.ref.task_id, str(entry.version)) == rest
        assert len(rest) == len(log) - entry.version
