"""Real processes with a Redis server at its memory limit. Runs are completed, and no live worker loses its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import running_fleet
from tests.support.processes.restarts import refuse_writes
from tests.support.waiting import eventually

LEASE = {"A2A_LEASE_TTL": "1.5", "A2A_REDISPATCH_AFTER": "3"}
FOUR_LEASES = "6"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_runs_when_the_store_is_full_completes(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, **LEASE) as fleet:
        gateway, _, _ = fleet.gateway(), fleet.worker(pool=pool), fleet.watcher()
        task = send(gateway, "silent", FOUR_LEASES, returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", task)) == "WORKING", what="the run has begun")

        refuse_writes(fleet.redis, "OOM")

        ended_task = eventually(
            lambda: current_task if state(current_task := read(gateway, "silent", task)) != "WORKING" else {},
            what="the task ends",
        )
        assert state(ended_task) == "COMPLETED", fleet.logs()
