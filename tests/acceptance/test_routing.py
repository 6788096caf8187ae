"""Routes and scheduled times of runs. The agent's route and the client's times apply whenever a run is published."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest

from a2a_celery.store import AsyncStore, Keys
from tests.support.clients import (
    BINDINGS,
    Served,
    message_json,
    rpc,
    sdk_client,
    send,
    serving,
    state,
    texts,
    until_state,
)
from tests.support.faults import fault
from tests.support.fleet import Fleet, Gateway, Process, free_port
from tests.support.waiting import eventually_async

KEY = "celery_schedule"


def worker_of(fleet: Fleet, queue: str, *options: str) -> Process:
    """Start a worker that only consumes `queue`."""
    queue = f"{fleet.queue}-{queue}"
    options = options or ("-P", "threads", "-c", "4")
    worker = fleet.start(queue, "worker", "-n", f"{queue}@%h", *options, "-l", "INFO", "-Q", queue)
    worker.wait_for_output(" ready.")
    return worker


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Served]:
    options = {"TEST_MAX_PRIORITY": "10"}  # RabbitMQ's queues only have priorities if they are declared with them
    with serving(tmp_path_factory.mktemp("fleet"), broker, pool="threads", concurrency=8, **options) as served:
        served.fleet.queues += [f"{served.fleet.queue}-{name}" for name in ("far", "acme", "nowhere", "ranked")]
        worker_of(served.fleet, "far")
        served.fleet.watcher()
        yield served


@pytest.fixture(scope="module")
def cut_off(served: Served) -> Gateway:
    """Gateway that reaches the store, but not the broker."""
    scheme = served.fleet.broker_url.partition(":")[0]
    return served.fleet.gateway(CELERY_BROKER_URL=f"{scheme}://127.0.0.1:{free_port()}/0")


def ran_on(served: Served, name: str, task_id: str) -> bool:
    """Return whether the log of a worker whose name contains `name` mentions the task."""
    return any(task_id in process.output() for process in served.fleet.processes if name in process.name)


def scheduled(text: str = "hello", **times: Any) -> dict[str, Any]:
    """Return the parameters of SendMessage with `times` in the metadata."""
    return message_json(text) | {"metadata": {KEY: times}}


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def finished(gateway: Gateway, body: dict[str, Any], agent: str = "routed") -> Any:
    """Send a message, poll until the task is terminal, and return the task."""
    body |= {"configuration": {"returnImmediately": True}}
    task = rpc(gateway, "SendMessage", body, agent=agent)["result"]["task"]
    async with sdk_client(gateway, agent) as client:
        return await until_state(client, task["id"], "COMPLETED", "REJECTED", "FAILED")


async def test_a_route_selects_the_queue_of_a_run(served: Served) -> None:
    near = await finished(served.gateway, message_json("hello"))
    far = await finished(served.gateway, message_json("to far"))

    assert state(near) == state(far) == "COMPLETED"
    assert ran_on(served, "worker-", near.id)
    assert not ran_on(served, "-far", near.id)
    assert ran_on(served, "-far", far.id)


async def test_a_run_that_is_published_later_goes_to_the_same_place(served: Served, cut_off: Gateway) -> None:
    task = await finished(cut_off, message_json("to far"))

    assert state(task) == "COMPLETED"
    assert ran_on(served, "-far", task.id)


async def test_a_message_that_waits_has_a_route_of_its_own(served: Served) -> None:
    async with sdk_client(served.gateway, "routed", streaming=False) as client:
        asked = await send(client, "ask", immediately=True)
        answered = await send(client, "to far", task_id=asked.id)

    assert texts(answered) == ["to far"]
    assert ran_on(served, "worker-", f"{asked.id}.1")
    assert ran_on(served, "-far", f"{asked.id}.2")


async def test_an_answer_has_a_route_of_its_own(served: Served) -> None:
    async with sdk_client(served.gateway, "routed", streaming=False) as client:
        asked = await send(client, "ask")
        assert state(asked) == "INPUT_REQUIRED"
        answered = await send(client, "to far", task_id=asked.id)

    assert texts(answered) == ["to far"]
    assert ran_on(served, "-far", f"{asked.id}.2")


async def test_a_route_knows_the_caller(served: Served) -> None:
    body = message_json("hello") | {"tenant": "acme", "configuration": {"returnImmediately": True}}
    task = rpc(served.gateway, "SendMessage", body, agent="routed")["result"]["task"]
    worker = worker_of(served.fleet, "acme")

    async with sdk_client(served.gateway, "routed", "GRPC") as client:
        ended = await until_tenant_state(client, task["id"], "routed/acme")

    assert ended == "COMPLETED"
    assert task["id"] in worker.output()


@pytest.mark.nightly
async def test_a_route_gives_a_priority(served: Served, broker: str) -> None:
    """The brokers differ: RabbitMQ starts with the highest number, Redis with the lowest, in steps of three."""
    async with sdk_client(served.gateway, "routed", streaming=False) as client:
        sent = {n: (await send(client, f"rank {n}", immediately=True)).id for n in (3, 9, 0, 6)}
        for task_id in sent.values():  # the gateway publishes after its response
            await eventually_async(lambda task_id=task_id: is_published(served, task_id))
        worker_of(served.fleet, "ranked", "-P", "solo", "--prefetch-multiplier", "1")

        ended = [await until_state(client, task_id, "COMPLETED") for task_id in sent.values()]

    ended.sort(key=lambda task: task.status.timestamp.ToNanoseconds())
    assert [texts(task) for task in ended] == [[f"rank {n}"] for n in sorted(sent, reverse=broker == "rabbitmq")]


async def is_published(served: Served, task_id: str) -> bool:
    """Return whether the task's first run has been published. A published run is due again in a minute instead of
    seconds."""
    return await due_in(served, f"{task_id}.1") > 30


async def due_in(served: Served, run: str) -> float:
    """Return the seconds until a watcher publishes `run`."""
    store = AsyncStore(served.fleet.redis.store_url)
    try:
        score = await store.redis.zscore(Keys("a2a").dispatch, run)
        return float(score or 0) / 1_000_000 - datetime.now(UTC).timestamp()
    finally:
        await store.aclose()


async def until_tenant_state(client: Client, task_id: str, tenant: str) -> str:
    async def ended() -> str:
        found = state(await client.get_task(GetTaskRequest(id=task_id, tenant=tenant)))
        return found if found not in ("SUBMITTED", "WORKING") else ""

    return await eventually_async(ended)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("text", ["raise", "wrong value", "wrong option", "nothing"])
async def test_a_route_that_fails_is_an_internal_error_and_leaves_nothing(
    served: Served, binding: str, text: str
) -> None:
    context = uuid4().hex
    for method in ("SendMessage", "SendStreamingMessage"):
        found = await fault(served.gateway, binding, method, message_json(text, contextId=context), agent="routed")

        assert found.reason == "INTERNAL_ERROR"
        assert found.message == "Internal error"
        assert found.metadata.get("reference", "[reference ") in served.gateway.output()
    listed = rpc(served.gateway, "ListTasks", {"contextId": context}, agent="routed")["result"]
    assert listed["totalSize"] == 0


async def test_a_run_begins_not_before_its_time(served: Served, cut_off: Gateway) -> None:
    for gateway in (served.gateway, cut_off):
        not_before = soon(3)

        task = await finished(gateway, scheduled(not_before=not_before.isoformat()))

        assert state(task) == "COMPLETED"
        assert task.status.timestamp.ToDatetime(UTC) >= not_before


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "behind another message"])
async def test_a_run_of_the_far_future_is_not_published_yet(served: Served, waits: bool) -> None:
    """A worker would hold the Celery message unacknowledged, which RabbitMQ tolerates for half an hour."""
    async with sdk_client(served.gateway, "routed", streaming=False) as client:
        fields = {"taskId": (await send(client, "ask", immediately=True)).id} if waits else {}
        body = scheduled(not_before=soon(3600).isoformat()) | {"configuration": {"returnImmediately": True}}
        body["message"] |= fields
        task = rpc(served.gateway, "SendMessage", body, agent="routed")["result"]["task"]
        run = f"{task['id']}.{2 if waits else 1}"

        async def is_held_back() -> bool:
            return 3600 - 660 < await due_in(served, run) < 3600 - 595

        await eventually_async(is_held_back, what="a watcher publishes it shortly before its time")
        assert not ran_on(served, "worker-", run)
        canceled = await client.cancel_task(CancelTaskRequest(id=task["id"]))

    assert state(canceled) == "CANCELED"


async def test_a_time_that_has_come_is_now(served: Served) -> None:
    task = rpc(served.gateway, "SendMessage", scheduled(not_before="2020-01-01T00:00:00Z"), agent="routed")

    assert task["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_run_that_does_not_start_in_time_is_rejected(served: Served) -> None:
    late = await finished(served.gateway, scheduled("to nowhere", not_after=soon(5).isoformat()))
    in_time = await finished(served.gateway, scheduled(not_after=soon(60).isoformat()))

    assert state(late) == "REJECTED"
    assert "in time" in late.status.message.parts[0].text
    assert state(in_time) == "COMPLETED"


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ("tomorrow", ""),
        ({}, ""),
        ({"notBefore": "2030-01-01T00:00:00Z"}, ""),
        ({"not_before": "tomorrow"}, ".not_before"),
        ({"not_before": "2030-01-01T00:00:00"}, ".not_before"),
        ({"not_before": 1893456000}, ".not_before"),
        ({"not_before": "0001-01-01T00:00:00+14:00"}, ".not_before"),
        ({"not_after": "2020-01-01T00:00:00Z"}, ".not_after"),
        ({"not_before": "2030-01-01T00:00:00Z", "not_after": "2030-01-01T00:00:00+00:00"}, ".not_after"),
    ],
    ids=str,
)
async def test_times_that_make_no_sense_are_named(served: Served, binding: str, schedule: Any, field: str) -> None:
    body = message_json() | {"metadata": {KEY: schedule}}

    found = await fault(served.gateway, binding, "SendMessage", body, agent="routed")

    assert found.reason == "INVALID_PARAMS"
    assert list(found.fields) == [f"metadata.{KEY}{field}"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_that_does_not_allow_times_refuses_them(served: Served, binding: str) -> None:
    body = scheduled(not_before="2030-01-01T00:00:00Z")

    found = await fault(served.gateway, binding, "SendMessage", body, agent="echo")

    assert list(found.fields) == [f"metadata.{KEY}"]
