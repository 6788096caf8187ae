"""Messages that a broker delivers repeatedly or not at all. The store decides which runs are executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from a2a_celery.store import Keys, SyncStore
from tests.support.fleet import Fleet, Process, running_fleet
from tests.support.records import endings_in, log_of, states_in
from tests.support.talk import read, send, state
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

LEASE = 3
LONG = {"A2A_LEASE_TTL": str(LEASE), "A2A_REDISPATCH_AFTER": "600"}
"""Settings under which a long wait does not cause a run to be republished."""

SHORT_VISIBILITY = "tests.support.short_visibility"
ENDED = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")


def has_fetched(worker: Process, task: dict[str, Any]) -> bool:
    """Return True if `worker` has received the Celery message of the task's first run."""
    return f"[{task['id']}.1] received" in worker.output()


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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_beyond_the_visibility_timeout_starts_no_second_agent(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, app=SHORT_VISIBILITY, A2A_ACK_EMULATION="true", **LONG) as fleet:
        gateway = fleet.gateway()
        workers = [fleet.worker(pool=pool, concurrency=1) for _ in range(2)]
        running_tasks = [send(gateway, "silent", "9", returnImmediately=True) for _ in range(2)]
        eventually(lambda: all(state(read(gateway, "silent", t)) == "WORKING" for t in running_tasks), what="both work")
        waiting_tasks = [send(gateway, "silent", "0", returnImmediately=True) for _ in range(4)]

        for task in running_tasks + waiting_tasks:
            eventually(lambda t=task: state(read(gateway, "silent", t)) in ENDED, what="the task ends")
            log = log_of(fleet.redis.store_url, task)
            assert endings_in(log) == ["COMPLETED"]
            assert states_in(log).count("WORKING") == 1
        # after the visibility timeout, the broker has redelivered the prefetched messages
        assert any("claimed before" in w.output() or "has ended" in w.output() for w in workers)
