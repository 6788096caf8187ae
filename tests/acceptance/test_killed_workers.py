"""Workers that are killed between two steps of a run, without acknowledgements in the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.store.records import log_of, states_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

SETTINGS = {"A2A_LEASE_TTL": "3", "A2A_REDISPATCH_AFTER": "600"}
"""Settings under which a long wait does not cause a run to be republished."""

PREFETCHED = {"prefork": 4, "threads": 4, "solo": 0, "gevent": 1, "asyncio": 4}
"""Number of messages that a worker prefetches while its only slot is in use. Workers on solo and gevent fetch fewer,
because their consumer blocks."""

POOLS = list(PREFETCHED)


def ends(fleet: Fleet, gateway: Gateway, agent: str, task: dict[str, Any]) -> list[str]:
    """Wait until the task is COMPLETED or FAILED, and return the states in its log."""
    eventually(lambda: state(read(gateway, agent, task)) in ("COMPLETED", "FAILED"), what=f"{agent} ends")
    return states_in(log_of(fleet.redis.store_url, task))


def count_fetched(worker: Process, tasks: list[dict[str, Any]]) -> int:
    """Return the number of the tasks whose first run the worker has fetched."""
    output = worker.output()
    return sum(f"[{task['id']}.1] received" in output for task in tasks)


@pytest.mark.parametrize("pool", POOLS)
def test_a_run_survives_its_worker_at_each_step(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, app="tests.support.agents.kill_points", **SETTINGS) as fleet:
        gateway, watcher = fleet.gateway(), fleet.watcher()
        for agent, step, states in (
            ("echo", "fetched", ["WORKING", "COMPLETED"]),
            ("echo", "begun", ["WORKING", "COMPLETED"]),
            ("echo", "claimed", ["WORKING", "FAILED"]),
            ("steady", "claimed", ["WORKING", "WORKING", "COMPLETED"]),
            ("echo", "ended", ["WORKING", "COMPLETED"]),
        ):
            doomed_worker = fleet.worker(pool=pool, concurrency=1, KILLED_AT=step)
            task = send(gateway, agent, "0 0", returnImmediately=True)
            eventually(lambda worker=doomed_worker: not worker.is_running, what=f"the worker is killed: {step}")
            rescuer = fleet.worker(pool=pool, concurrency=1)

            assert ends(fleet, gateway, agent, task) == states, (agent, step)
            is_published_again = f"run {task['id']}.1 published again" in watcher.output()
            assert is_published_again == (step in ("fetched", "begun"))
            rescuer.stop()


@pytest.mark.parametrize("pool", POOLS)
def test_the_runs_that_a_killed_worker_has_prefetched_survive(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, **SETTINGS) as fleet:
        gateway = fleet.gateway()
        fleet.watcher()
        doomed_worker = fleet.worker(pool=pool, concurrency=1)
        active = send(gateway, "silent", "600", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", active)) == "WORKING", what="the task is WORKING")
        waiting_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(8)]
        # any of these runs, because a gateway publishes several at once
        eventually(
            lambda: count_fetched(doomed_worker, waiting_tasks) == PREFETCHED[pool],
            what="it has prefetched all that it may",
        )

        doomed_worker.kill()
        fleet.worker(pool=pool, concurrency=1)

        for task in waiting_tasks:
            assert ends(fleet, gateway, "echo", task) == ["WORKING", "COMPLETED"]
        assert ends(fleet, gateway, "silent", active) == ["WORKING", "FAILED"]
        assert count_fetched(doomed_worker, waiting_tasks) == PREFETCHED[pool], "the prefetch limit holds"


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_stops_returns_its_prefetched_runs(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, **SETTINGS) as fleet:
        gateway = fleet.gateway()
        stopping_worker = fleet.worker(pool=pool, concurrency=1)
        active = send(gateway, "silent", "2", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", active)) == "WORKING", what="the task is WORKING")
        waiting_tasks = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(3)]
        prefetched_count = min(PREFETCHED[pool], len(waiting_tasks))
        eventually(
            lambda: count_fetched(stopping_worker, waiting_tasks) >= prefetched_count,
            what="the worker has prefetched its maximum",
        )

        stopping_worker.terminate()
        fleet.worker(pool=pool, concurrency=1)

        for task in waiting_tasks:  # no watcher is running
            assert ends(fleet, gateway, "echo", task) == ["WORKING", "COMPLETED"]
        assert ends(fleet, gateway, "silent", active) == ["WORKING", "COMPLETED"]
        eventually(lambda: not stopping_worker.is_running, what="the worker ends")


@pytest.mark.parametrize("pool", ["prefork", "asyncio"])
def test_a_retry_that_waits_in_a_killed_worker_survives(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, app="tests.support.agents.retry_agents", **SETTINGS) as fleet:
        gateway = fleet.gateway()
        fleet.watcher()
        doomed_worker = fleet.worker(pool=pool, concurrency=1)
        task = send(gateway, "throttled", "x", returnImmediately=True)
        received_line = f"[{task['id']}.1] received"
        eventually(lambda: doomed_worker.output().count(received_line) == 2, what="the worker has fetched the retry")

        doomed_worker.kill()
        fleet.worker(pool=pool, concurrency=1)

        assert ends(fleet, gateway, "throttled", task) == ["WORKING", "WORKING", "WORKING", "COMPLETED"]
