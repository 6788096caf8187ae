"""Store that workers cannot reach, or that is full, while runs are active and prefetched. The runs wait for the store,
and end once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.processes.proxy import proxy
from tests.support.processes.restarts import allow_writes, refuse_writes
from tests.support.store.records import log_of, states_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind


def complete_once(fleet: Fleet, gateway: Gateway, *sent: tuple[str, dict[str, Any]]) -> None:
    """Wait until all tasks have ended, and require that each was begun and completed once."""
    for agent, task in sent:
        eventually(lambda a=agent, t=task: state(read(gateway, a, t)) not in ("SUBMITTED", "WORKING"), what="it ends")
        assert states_in(log_of(fleet.redis.store_url, task)) == ["WORKING", "COMPLETED"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_runs_of_a_worker_that_does_not_reach_the_store_wait_for_it(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path) as fleet, proxy(str(fleet.redis.home / "redis.sock")) as line:
        gateway = fleet.gateway()
        worker = fleet.worker(pool=pool, A2A_STORE_URL=f"redis://127.0.0.1:{line.port}/0")
        fleet.watcher()
        active_task = send(gateway, "pace", "20 0.1", returnImmediately=True)
        eventually(lambda: "artifacts" in read(gateway, "pace", active_task), what="the run has begun")

        line.cut()
        waiting_tasks = [("echo", send(gateway, "echo", str(n), returnImmediately=True)) for n in range(3)]
        for _, task in waiting_tasks:
            worker.wait_for_output(f"[{task['id']}.1] received")
        worker.wait_for_output("a write waits for the store")
        assert {state(read(gateway, "echo", task)) for _, task in waiting_tasks} == {"SUBMITTED"}
        line.restore()

        complete_once(fleet, gateway, ("pace", active_task), *waiting_tasks)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_prefetched_runs_wait_for_memory_of_a_full_store_and_an_active_run_ends(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path) as fleet:
        gateway, worker = fleet.gateway(), fleet.worker(pool=pool, concurrency=1)
        fleet.watcher()
        active_task = send(gateway, "silent", "3", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", active_task)) == "WORKING", what="the run has begun")
        waiting_tasks = [("echo", send(gateway, "echo", str(n), returnImmediately=True)) for n in range(2)]
        for _, task in waiting_tasks:
            worker.wait_for_output(f"[{task['id']}.1] received")

        refuse_writes(fleet.redis, "OOM")
        eventually(lambda: state(read(gateway, "silent", active_task)) == "COMPLETED", what="the active run ends")
        assert {state(read(gateway, "echo", task)) for _, task in waiting_tasks} == {"SUBMITTED"}
        allow_writes(fleet.redis)

        complete_once(fleet, gateway, *waiting_tasks)
