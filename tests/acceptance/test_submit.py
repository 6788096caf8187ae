"""`A2A.submit` with real brokers and workers. No gateway is needed, and the stored tasks equal those of SendMessage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from a2a.utils.errors import ContentTypeNotSupportedError, TaskNotFoundError
from celery import Celery

from a2a_celery import A2A
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, WORKING
from a2a_celery.store import Keys, SyncStore
from tests.support.agents.basic import a2a as fleets
from tests.support.clients.bindings import message_json, rest
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.each_kind


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("submit"), broker) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def submitter(fleet: Fleet) -> Iterator[A2A]:
    """App in the test process, without a gateway."""
    app = Celery("submitting", broker=fleet.broker_url, set_as_current=False)
    app.conf.update(task_default_queue=fleet.queue, a2a_store_url=fleet.redis.store_url)
    a2a = A2A(app)
    a2a.agents.update(fleets.agents)
    yield a2a
    a2a.close()
    app.close()


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_a_task_without_a_gateway(fleet: Fleet, submitter: A2A, pool: str) -> None:
    event_stream = submitter.submit("count", "3", owner="ann").events()
    events = [next(event_stream)]
    worker = fleet.worker(pool=pool)

    handles = [submitter.submit("echo", f"number {n}", owner="ann") for n in range(3)]
    results = [handle.result(timeout=LIMIT) for handle in handles]
    events += event_stream

    assert [(result.state, result.text) for result in results] == [(COMPLETED, f"number {n}") for n in range(3)]
    assert events[0].HasField("task")
    assert events[-1].status_update.status.state == COMPLETED
    assert sum(event.HasField("artifact_update") for event in events) >= 3
    worker.stop()


def test_many_coroutines_submit_and_cancel(fleet: Fleet, submitter: A2A) -> None:
    worker = fleet.worker(pool="threads", concurrency=4)

    async def submit_all() -> None:
        handles = await asyncio.gather(*(submitter.submit_async("silent", "60") for _ in range(4)))
        events = handles[0].events_async()
        async for event in events:
            if WORKING in (event.status_update.status.state, event.task.status.state):
                break
        results = await asyncio.gather(*(handle.cancel_async() for handle in handles))
        assert [result.state for result in results] == [CANCELED] * 4

    asyncio.run(submit_all())
    worker.stop()


def test_the_stored_task_is_the_one_of_send_message(fleet: Fleet, submitter: A2A) -> None:
    gateway = fleet.gateway()
    body = message_json("hello") | {"configuration": {"returnImmediately": True}}
    keys, store = Keys("a2a"), SyncStore(fleet.redis.store_url)
    gateway_task_id = rest(gateway, "POST", "/message:send", body, agent="echo").json()["task"]["id"]
    submitted_task_id = submitter.submit("echo", "hello").task_id
    records = [store.redis.hgetall(keys.task(task_id).record) for task_id in (gateway_task_id, submitted_task_id)]
    store.close()

    own = {b"reply_channel", b"final_only", b"published_at"}
    assert records[0].keys() - own == records[1].keys() - own
    for field in (b"scope", b"state", b"options", b"retention", b"phase", b"turn", b"attempt"):
        assert records[0].get(field) == records[1].get(field), field
    stored_task = rest(gateway, "GET", f"/tasks/{submitted_task_id}", agent="echo").json()
    assert stored_task["history"][0]["parts"] == [{"text": "hello"}]
    worker = fleet.worker(pool="threads")
    eventually(
        lambda: (
            rest(gateway, "GET", f"/tasks/{submitted_task_id}", agent="echo")
            .json()["status"]["state"]
            .endswith("COMPLETED")
        )
    )
    worker.stop()


def test_a_message_is_submitted_at_the_commit(fleet: Fleet, submitter: A2A) -> None:
    worker = fleet.worker()
    after_commit: list[Callable[[], None]] = []

    with pytest.raises(ContentTypeNotSupportedError):
        submitter.submit("echo", b"bytes", on_commit=after_commit.append)
    assert after_commit == []
    handle = submitter.submit("echo", "text", owner="ann", on_commit=after_commit.append)
    task_id = handle.task_id
    with pytest.raises(TaskNotFoundError):
        handle.result(timeout=0)
    (commit,) = after_commit
    commit()

    assert (handle.task_id, handle.result(timeout=LIMIT).text) == (task_id, "text")
    worker.stop()
