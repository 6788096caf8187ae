"""Killed and frozen workers. Watchers fail or retry the workers' runs, and no run is executed twice at a time."""

from __future__ import annotations

import signal

import pytest
from a2a.types import GetTaskRequest, Task, TaskState

from a2a_celery.store import SyncStore
from tests.support.clients.bindings import request, sdk_client
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.store.backup import backup_of, restore
from tests.support.store.records import log_of, states_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}


@pytest.fixture
def lease_fleet(tmp_path, broker: str):  # type: ignore[no-untyped-def]
    """Fleet with short leases, on each broker."""
    with running_fleet(tmp_path, broker, **LEASE) as fleet:
        yield fleet


def test_runs_of_a_killed_worker_fail_or_are_attempted_again(lease_fleet: Fleet) -> None:
    gateway, doomed_worker = lease_fleet.gateway(), lease_fleet.worker(concurrency=2)
    failed_task, retried_task = (
        send(gateway, "silent", "60", returnImmediately=True),
        send(gateway, "steady", "60 60", returnImmediately=True),
    )
    eventually(lambda: state(read(gateway, "silent", failed_task)) == "WORKING", what="the first works")
    eventually(lambda: "artifacts" in read(gateway, "steady", retried_task), what="the second has begun")
    queued_task = send(gateway, "echo", "prefetched or queued", returnImmediately=True)
    doomed_worker.kill()
    lease_fleet.watcher()
    lease_fleet.watcher()
    lease_fleet.worker(concurrency=2)

    eventually(lambda: state(read(gateway, "silent", failed_task)) == "FAILED", what="the first is failed")
    assert read(gateway, "silent", failed_task)["status"]["message"]["parts"] == [{"text": "The worker was lost."}]
    second_attempt = eventually(
        lambda: [a for a in read(gateway, "steady", retried_task)["artifacts"] if "attempt 2" in str(a)],
        what="the second runs again",
    )
    assert len(second_attempt) == 1
    artifacts = read(gateway, "steady", retried_task)["artifacts"]
    assert [a["parts"][0]["text"] for a in artifacts] == ["finished", "attempt 2 "], "only what was whole is kept"
    eventually(
        lambda: state(read(gateway, "echo", queued_task)) == "COMPLETED",
        what="unclaimed runs start on another worker",
    )


async def test_a_store_that_comes_back_without_its_newest_writes_fails_the_task_and_its_reader_begins_anew(
    fleet: Fleet,
) -> None:
    gateway = fleet.gateway(**LEASE)
    fleet.worker(pool="threads", **LEASE)
    fleet.watcher(**LEASE)
    store = SyncStore(fleet.redis.store_url)
    backup: dict[bytes, bytes] = {}
    chunks: list[str] = []
    reread_tasks: list[Task] = []
    backed_up = 0  # upper bound of the number of chunks in the backup: on a slow machine, the reader lags behind
    async with sdk_client(gateway, "pace") as client:
        async for event in client.send_message(request("600 0.2")):
            match event.WhichOneof("payload"):
                case "artifact_update":
                    chunks.append(event.artifact_update.artifact.parts[0].text)
                case "task":
                    reread_tasks.append(event.task)
            if len(chunks) == 3 and not backup:
                backup = backup_of(store)
                task = await client.get_task(GetTaskRequest(id=reread_tasks[0].id))
                backed_up = len(task.artifacts[0].parts[0].text.split())
            if len(chunks) == backed_up + 7 and len(reread_tasks) == 1:
                restore(store, backup)
            last = event
    store.close()

    status = last.task.status if last.HasField("task") else last.status_update.status  # the task may be FAILED already
    assert TaskState.Name(status.state) == "TASK_STATE_FAILED"
    anew = reread_tasks[-1]
    assert len(reread_tasks) == 2
    assert len(anew.artifacts[0].parts[0].text.split()) <= backed_up


def test_a_frozen_worker_has_lost_its_run(fleet: Fleet) -> None:
    gateway, frozen = fleet.gateway(**LEASE), fleet.worker(pool="threads", **LEASE)
    task = send(gateway, "steady", "60 6", returnImmediately=True)
    eventually(lambda: "artifacts" in read(gateway, "steady", task), what="it has begun")
    frozen.signal_group(signal.SIGSTOP)
    fleet.watcher(**LEASE)
    fleet.worker(pool="threads", **LEASE)
    eventually(lambda: "attempt 2" in str(read(gateway, "steady", task)), what="another goes on")

    frozen.signal_group(signal.SIGCONT)

    frozen.wait_for_output("another worker has its lease")
    eventually(lambda: state(read(gateway, "steady", task)) == "COMPLETED", what="the other finishes")
    texts = ["".join(part["text"] for part in a["parts"]) for a in read(gateway, "steady", task)["artifacts"]]
    assert texts == ["finished", "attempt 2 done"]


def test_a_frozen_worker_drops_its_runs_and_its_prefetched_messages(lease_fleet: Fleet) -> None:
    gateway, frozen = lease_fleet.gateway(), lease_fleet.worker(concurrency=1)
    active_task = send(gateway, "silent", "600", returnImmediately=True)
    eventually(lambda: state(read(gateway, "silent", active_task)) == "WORKING", what="the run has begun")
    prefetched_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(2)]
    for task in prefetched_tasks:
        frozen.wait_for_output(f"[{task['id']}.1] received")
    frozen.signal_group(signal.SIGSTOP)
    lease_fleet.watcher()
    lease_fleet.worker()
    eventually(lambda: state(read(gateway, "silent", active_task)) == "FAILED", what="the active run is lost")
    for task in prefetched_tasks:
        eventually(lambda t=task: state(read(gateway, "echo", t)) == "COMPLETED", what="it is published again")

    frozen.signal_group(signal.SIGCONT)

    frozen.wait_for_output("another worker has its lease")
    for task in prefetched_tasks:
        frozen.wait_for_output(f"run {task['id']}.1 dropped")
    for task, end in ((active_task, "FAILED"), *((task, "COMPLETED") for task in prefetched_tasks)):
        assert states_in(log_of(lease_fleet.redis.store_url, task)) == ["WORKING", end]


def test_an_agent_that_kills_its_workers_is_stopped_after_its_limit(fleet: Fleet) -> None:
    gateway = fleet.gateway(**LEASE)
    fleet.watcher(**LEASE)
    task = send(gateway, "poison", "", returnImmediately=True)
    for _ in range(2):
        victim = fleet.worker(pool="solo", **LEASE)
        eventually(lambda v=victim: not v.is_running, what="the worker process exits")

    eventually(lambda: state(read(gateway, "poison", task)) == "FAILED", what="it is given up")
    fleet.worker(**LEASE)
    assert state(read(gateway, "poison", task)) == "FAILED"
    echo_task = send(gateway, "echo", "still here", returnImmediately=True)
    eventually(lambda: state(read(gateway, "echo", echo_task)) == "COMPLETED", what="others run")
