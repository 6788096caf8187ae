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
from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    message_json,
    rpc,
    sdk_client,
    send,
    serve_fleet,
    state,
    texts,
    wait_for_state,
)
from tests.support.clients.faults import fault
from tests.support.processes.fleet import Fleet, Gateway, Process, free_port
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
def served_fleet(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[ServedFleet]:
    options = {"TEST_MAX_PRIORITY": "10"}  # RabbitMQ's queues only have priorities if they are declared with them
    with serve_fleet(
        tmp_path_factory.mktemp("fleet"), broker, pool="threads", concurrency=8, **options
    ) as served_fleet:
        served_fleet.fleet.queues += [
            f"{served_fleet.fleet.queue}-{name}" for name in ("far", "acme", "nowhere", "ranked")
        ]
        worker_of(served_fleet.fleet, "far")
        served_fleet.fleet.watcher()
        yield served_fleet


@pytest.fixture(scope="module")
def cut_off(served_fleet: ServedFleet) -> Gateway:
    """Gateway that reaches the store, but not the broker."""
    scheme = served_fleet.fleet.broker_url.partition(":")[0]
    return served_fleet.fleet.gateway(CELERY_BROKER_URL=f"{scheme}://127.0.0.1:{free_port()}/0")


def ran_on(served_fleet: ServedFleet, name: str, task_id: str) -> bool:
    """Return True if the log of a worker whose name contains `name` mentions the task."""
    return any(task_id in process.output() for process in served_fleet.fleet.processes if name in process.name)


def schedule_body(text: str = "hello", **times: Any) -> dict[str, Any]:
    """Return the parameters of SendMessage with `times` in the metadata."""
    return message_json(text) | {"metadata": {KEY: times}}


def time_after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def finish_task(gateway: Gateway, body: dict[str, Any], agent: str = "routed") -> Any:
    """Send a message, poll until the task is terminal, and return the task."""
    body |= {"configuration": {"returnImmediately": True}}
    task = rpc(gateway, "SendMessage", body, agent=agent)["result"]["task"]
    async with sdk_client(gateway, agent) as client:
        return await wait_for_state(client, task["id"], "COMPLETED", "REJECTED", "FAILED")


async def test_a_route_selects_the_queue_of_a_run(served_fleet: ServedFleet) -> None:
    near = await finish_task(served_fleet.gateway, message_json("hello"))
    far = await finish_task(served_fleet.gateway, message_json("to far"))

    assert state(near) == state(far) == "COMPLETED"
    assert ran_on(served_fleet, "worker-", near.id)
    assert not ran_on(served_fleet, "-far", near.id)
    assert ran_on(served_fleet, "-far", far.id)


async def test_a_run_that_is_published_later_goes_to_the_same_place(
    served_fleet: ServedFleet, cut_off: Gateway
) -> None:
    task = await finish_task(cut_off, message_json("to far"))

    assert state(task) == "COMPLETED"
    assert ran_on(served_fleet, "-far", task.id)


async def test_a_waiting_message_has_a_separate_route(served_fleet: ServedFleet) -> None:
    async with sdk_client(served_fleet.gateway, "routed", streaming=False) as client:
        question_task = await send(client, "ask", immediately=True)
        answered_task = await send(client, "to far", task_id=question_task.id)

    assert texts(answered_task) == ["to far"]
    assert ran_on(served_fleet, "worker-", f"{question_task.id}.1")
    assert ran_on(served_fleet, "-far", f"{question_task.id}.2")


async def test_an_answer_has_a_separate_route(served_fleet: ServedFleet) -> None:
    async with sdk_client(served_fleet.gateway, "routed", streaming=False) as client:
        question_task = await send(client, "ask")
        assert state(question_task) == "INPUT_REQUIRED"
        answered_task = await send(client, "to far", task_id=question_task.id)

    assert texts(answered_task) == ["to far"]
    assert ran_on(served_fleet, "-far", f"{question_task.id}.2")


async def test_a_route_knows_the_caller(served_fleet: ServedFleet) -> None:
    body = message_json("hello") | {"tenant": "acme", "configuration": {"returnImmediately": True}}
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="routed")["result"]["task"]
    worker = worker_of(served_fleet.fleet, "acme")

    async with sdk_client(served_fleet.gateway, "routed", "GRPC") as client:
        ended_task = await wait_for_tenant_state(client, task["id"], "routed/acme")

    assert ended_task == "COMPLETED"
    assert task["id"] in worker.output()


@pytest.mark.nightly
async def test_a_route_gives_a_priority(served_fleet: ServedFleet, broker: str) -> None:
    """The brokers differ: RabbitMQ starts with the highest number, Redis with the lowest, in steps of three."""
    async with sdk_client(served_fleet.gateway, "routed", streaming=False) as client:
        task_ids = {n: (await send(client, f"rank {n}", immediately=True)).id for n in (3, 9, 0, 6)}
        for task_id in task_ids.values():  # the gateway publishes after its response
            await eventually_async(lambda task_id=task_id: is_published(served_fleet, task_id))
        worker_of(served_fleet.fleet, "ranked", "-P", "solo", "--prefetch-multiplier", "1")

        ended_tasks = [await wait_for_state(client, task_id, "COMPLETED") for task_id in task_ids.values()]

    ended_tasks.sort(key=lambda task: task.status.timestamp.ToNanoseconds())
    assert [texts(task) for task in ended_tasks] == [
        [f"rank {n}"] for n in sorted(task_ids, reverse=broker == "rabbitmq")
    ]


async def is_published(served_fleet: ServedFleet, task_id: str) -> bool:
    """Return True if the task's first run has been published. A published run is due again in a minute instead of
    seconds."""
    return await due_in(served_fleet, f"{task_id}.1") > 30


async def due_in(served_fleet: ServedFleet, run: str) -> float:
    """Return the seconds until a watcher publishes `run`."""
    store = AsyncStore(served_fleet.fleet.redis.store_url)
    try:
        score = await store.redis.zscore(Keys("a2a").dispatch, run)
        return float(score or 0) / 1_000_000 - datetime.now(UTC).timestamp()
    finally:
        await store.aclose()


async def wait_for_tenant_state(client: Client, task_id: str, tenant: str) -> str:
    async def final_state() -> str:
        current_state = state(await client.get_task(GetTaskRequest(id=task_id, tenant=tenant)))
        return current_state if current_state not in ("SUBMITTED", "WORKING") else ""

    return await eventually_async(final_state)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("text", ["raise", "wrong value", "wrong option", "nothing"])
async def test_a_route_that_fails_is_an_internal_error_and_leaves_nothing(
    served_fleet: ServedFleet, binding: str, text: str
) -> None:
    context = uuid4().hex
    for method in ("SendMessage", "SendStreamingMessage"):
        received_fault = await fault(
            served_fleet.gateway, binding, method, message_json(text, contextId=context), agent="routed"
        )

        assert received_fault.reason == "INTERNAL_ERROR"
        assert received_fault.message == "Internal error"
        assert received_fault.metadata.get("reference", "[reference ") in served_fleet.gateway.output()
    task_list = rpc(served_fleet.gateway, "ListTasks", {"contextId": context}, agent="routed")["result"]
    assert task_list["totalSize"] == 0


async def test_a_run_begins_not_before_its_time(served_fleet: ServedFleet, cut_off: Gateway) -> None:
    for gateway in (served_fleet.gateway, cut_off):
        not_before = time_after(3)

        task = await finish_task(gateway, schedule_body(not_before=not_before.isoformat()))

        assert state(task) == "COMPLETED"
        assert task.status.timestamp.ToDatetime(UTC) >= not_before


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "behind another message"])
async def test_a_run_of_the_far_future_is_not_published_yet(served_fleet: ServedFleet, waits: bool) -> None:
    """A worker would hold the Celery message unacknowledged, which RabbitMQ tolerates for half an hour."""
    async with sdk_client(served_fleet.gateway, "routed", streaming=False) as client:
        fields = {"taskId": (await send(client, "ask", immediately=True)).id} if waits else {}
        body = schedule_body(not_before=time_after(3600).isoformat()) | {"configuration": {"returnImmediately": True}}
        body["message"] |= fields
        task = rpc(served_fleet.gateway, "SendMessage", body, agent="routed")["result"]["task"]
        run = f"{task['id']}.{2 if waits else 1}"

        async def is_held_back() -> bool:
            return 3600 - 660 < await due_in(served_fleet, run) < 3600 - 595

        await eventually_async(is_held_back, what="a watcher publishes it shortly before its time")
        assert not ran_on(served_fleet, "worker-", run)
        canceled_task = await client.cancel_task(CancelTaskRequest(id=task["id"]))

    assert state(canceled_task) == "CANCELED"


async def test_a_time_that_has_come_is_now(served_fleet: ServedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", schedule_body(not_before="2020-01-01T00:00:00Z"), agent="routed")

    assert task["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_run_that_does_not_start_in_time_is_rejected(served_fleet: ServedFleet) -> None:
    late_task = await finish_task(
        served_fleet.gateway, schedule_body("to nowhere", not_after=time_after(5).isoformat())
    )
    timely_task = await finish_task(served_fleet.gateway, schedule_body(not_after=time_after(60).isoformat()))

    assert state(late_task) == "REJECTED"
    assert "in time" in late_task.status.message.parts[0].text
    assert state(timely_task) == "COMPLETED"


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
        ({"not_after": "9999-12-31T23:59:59Z"}, ".not_after"),
        ({"not_before": "2030-01-01T00:00:00Z", "not_after": "2030-01-01T00:00:00+00:00"}, ".not_after"),
    ],
    ids=str,
)
async def test_times_that_make_no_sense_are_named(
    served_fleet: ServedFleet, binding: str, schedule: Any, field: str
) -> None:
    body = message_json() | {"metadata": {KEY: schedule}}

    received_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="routed")

    assert received_fault.reason == "INVALID_PARAMS"
    assert list(received_fault.fields) == [f"metadata.{KEY}{field}"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_that_does_not_allow_times_refuses_them(served_fleet: ServedFleet, binding: str) -> None:
    body = schedule_body(not_before="2030-01-01T00:00:00Z")

    received_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="echo")

    assert list(received_fault.fields) == [f"metadata.{KEY}"]
