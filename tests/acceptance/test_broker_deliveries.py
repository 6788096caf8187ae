"""Messages that a broker delivers repeatedly or not at all. The store decides which runs are executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from a2a_celery.store import Keys, SyncStore
from tests.acceptance.test_waits_and_brokers import interruptible
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.store.records import endings_in, log_of, states_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

LEASE = 3
LONG = {"A2A_LEASE_TTL": str(LEASE), "A2A_REDISPATCH_AFTER": "600"}
"""Settings under which a long wait does not cause a run to be republished."""

ACKNOWLEDGEMENT = "tests.support.agents.acknowledgement"
MODES = {
    "in memory": {"A2A_ACK_EMULATION": "false"},
    "early": {"A2A_ACK_EMULATION": "true"},
    "late": {"A2A_ACK_EMULATION": "true", "TEST_ACKS_LATE": "1"},
}
"""Variables of a fleet for each mode of acknowledgement in docs/guarantees.md."""
ENDED = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")


def has_fetched(worker: Process, task: dict[str, Any]) -> bool:
    """Return True if `worker` has received the Celery message of the task's first run."""
    return f"[{task['id']}.1] received" in worker.output()


def was_dropped(worker: Process, task: dict[str, Any]) -> bool:
    """Return True if `worker` has received the task's first run again, and dropped it."""
    return f"run {task['id']}.1 dropped" in worker.output()


def occupy(gateway: Gateway, worker: Process, seconds: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Start a run of `seconds` in the only slot of `worker`, and let the worker prefetch two runs. Return the tasks."""
    running_task = send(gateway, "silent", seconds, returnImmediately=True)
    eventually(lambda: state(read(gateway, "silent", running_task)) == "WORKING", what="the run has begun")
    waiting_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(2)]
    eventually(lambda: all(has_fetched(worker, task) for task in waiting_tasks), what="the others are prefetched")
    return running_task, waiting_tasks


def is_reported(fleet: Fleet, task: dict[str, Any]) -> bool:
    """Return True if the task's run is in a prefetch report in the store."""
    store = SyncStore(fleet.redis.store_url)
    prefetch_field = store.redis.hget(Keys().task(task["id"]).record, "prefetched")
    store.close()
    return prefetch_field is not None


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_prefetched_runs_of_a_killed_worker_start_on_another_worker(tmp_path: Path, broker: str, pool: str) -> None:
    with running_fleet(tmp_path, broker, **LONG) as fleet:
        gateway, doomed_worker = fleet.gateway(), fleet.worker(pool=pool, concurrency=1)
        fleet.watcher()
        running_task = send(gateway, "silent", "600", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", running_task)) == "WORKING", what="the run has begun")
        waiting_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(2)]
        if pool == "prefork":  # a solo worker fetches no message while it executes a run
            eventually(lambda: all(is_reported(fleet, task) for task in waiting_tasks), what="the store knows of them")
        later_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(6)]
        if pool == "prefork":  # any of these runs, because a gateway publishes several at once
            eventually(
                lambda: any(has_fetched(doomed_worker, t) for t in later_tasks),
                what="the store does not know of one yet",
            )

        doomed_worker.kill()
        fleet.worker(pool="threads")

        for task in waiting_tasks + later_tasks:
            eventually(
                lambda t=task: state(read(gateway, "echo", t)) in ENDED,
                what="unclaimed runs start on another worker",
            )
            assert states_in(log_of(fleet.redis.store_url, task)) == ["WORKING", "COMPLETED"]
        eventually(lambda: state(read(gateway, "silent", running_task)) == "FAILED", what="it is lost")


@pytest.mark.parametrize(
    ("pool", "mode"), [("prefork", "in memory"), ("prefork", "early"), ("prefork", "late"), ("threads", "early")]
)
def test_a_run_beyond_the_visibility_timeout_starts_no_second_agent(tmp_path: Path, pool: str, mode: str) -> None:
    with running_fleet(tmp_path, app=ACKNOWLEDGEMENT, TEST_VISIBILITY="2", **MODES[mode], **LONG) as fleet:
        gateway = fleet.gateway()
        workers = [fleet.worker(pool=pool, concurrency=1) for _ in range(2)]
        running_tasks = [send(gateway, "silent", "9", returnImmediately=True) for _ in range(2)]
        eventually(lambda: all(state(read(gateway, "silent", t)) == "WORKING" for t in running_tasks), what="both work")
        waiting_tasks = [send(gateway, "silent", "0", returnImmediately=True) for _ in range(4)]
        exposed_tasks = [send(gateway, "sleeps", data={"seconds": 0}, returnImmediately=True) for _ in range(2)]

        for agent, tasks in (("silent", running_tasks), ("silent", waiting_tasks), ("sleeps", exposed_tasks)):
            for task in tasks:
                eventually(lambda a=agent, t=task: state(read(gateway, a, t)) in ENDED, what="the task ends")
                log = log_of(fleet.redis.store_url, task)
                assert endings_in(log) == ["COMPLETED"]
                assert states_in(log).count("WORKING") == 1

        def are_redelivered() -> list[bool]:
            return [
                any(was_dropped(worker, task) for worker in workers for task in tasks)
                for tasks in (running_tasks, waiting_tasks, exposed_tasks)
            ]

        # a worker may receive the copy of a message after the task has ended
        expected = [mode == "late", mode != "in memory", True]
        eventually(lambda: are_redelivered() == expected, what="the copies are dropped")


@pytest.mark.parametrize("mode", ["early", "late"])
def test_runs_of_a_killed_worker_are_recovered_in_each_mode(tmp_path: Path, broker: str, mode: str) -> None:
    with running_fleet(tmp_path, broker, app=ACKNOWLEDGEMENT, **MODES[mode], **LONG) as fleet:
        gateway, doomed_worker = fleet.gateway(), fleet.worker(concurrency=1)
        running_task, waiting_tasks = occupy(gateway, doomed_worker, "600")

        doomed_worker.kill()
        rescuer = fleet.worker(concurrency=1)
        if broker == "redis":
            fleet.watcher()

        for task in waiting_tasks:  # RabbitMQ redelivers the messages, so no watcher is needed
            eventually(lambda t=task: state(read(gateway, "echo", t)) in ENDED, what="the run starts elsewhere")
            assert states_in(log_of(fleet.redis.store_url, task)) == ["WORKING", "COMPLETED"]
        if broker == "rabbitmq":
            assert was_dropped(rescuer, running_task) == (mode == "late")
            fleet.watcher()
        eventually(lambda: state(read(gateway, "silent", running_task)) == "FAILED", what="it is lost")
        assert states_in(log_of(fleet.redis.store_url, running_task)) == ["WORKING", "FAILED"]


@pytest.mark.parametrize("mode", ["early", "late"])
def test_a_worker_that_stops_requeues_its_prefetched_runs_in_each_mode(tmp_path: Path, broker: str, mode: str) -> None:
    with running_fleet(tmp_path, broker, app=ACKNOWLEDGEMENT, **MODES[mode], **LONG) as fleet:
        gateway, stopping_worker = fleet.gateway(), fleet.worker(concurrency=1)
        running_task, waiting_tasks = occupy(gateway, stopping_worker, "3")

        stopping_worker.terminate()
        fleet.worker(concurrency=1)

        for agent, task in (("silent", running_task), *(("echo", task) for task in waiting_tasks)):
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) in ENDED, what="no watcher is needed")
            assert states_in(log_of(fleet.redis.store_url, task)) == ["WORKING", "COMPLETED"]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_an_active_run_that_the_broker_redelivers_after_an_interruption_is_dropped(tmp_path: Path, broker: str) -> None:
    settings = {**MODES["late"], **LONG, "TEST_VISIBILITY": "2"}  # after which Redis redelivers the message
    with (
        interruptible(broker, tmp_path / "broker") as (url, interrupt, restore),
        running_fleet(tmp_path, broker, app=ACKNOWLEDGEMENT, **settings) as fleet,
    ):
        gateway, worker = fleet.gateway(CELERY_BROKER_URL=url), fleet.worker(concurrency=1, CELERY_BROKER_URL=url)
        running_task, waiting_tasks = occupy(gateway, worker, "6")

        interrupt()
        restore()

        eventually(lambda: was_dropped(worker, running_task), what="the run is redelivered, and dropped")
        for agent, task in (("silent", running_task), *(("echo", task) for task in waiting_tasks)):
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) in ENDED, what="the task ends")
            assert states_in(log_of(fleet.redis.store_url, task)) == ["WORKING", "COMPLETED"]
