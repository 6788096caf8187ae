"""Schedules with two ``celery beat`` processes and a worker, on each broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.schedules import schedule as interval

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.tasks.commands import read_task
from tests.support.clients.operator import Operator
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.proxy import proxy
from tests.support.waiting import eventually

APP = "tests.support.agents.scheduled_agents"

LEASE_TTL = 3.0


pytestmark = pytest.mark.each_kind


@pytest.fixture
def fleet(broker: str, tmp_path: Path) -> Iterator[Fleet]:
    gate = tmp_path / "gate"
    gate.touch()
    with running_fleet(tmp_path, broker, app=APP, TEST_GATE=str(gate)) as fleet:
        yield fleet


def beat(fleet: Fleet, number: int, *options: str, **env: str) -> Process:
    """Start a beat process with its own schedule file."""
    file = fleet.folder / f"beat-{number}.schedule"
    return fleet.start(f"beat-{number}", "beat", "-l", "INFO", "-s", str(file), "--pidfile=", *options, **env)


def busy_worker(fleet: Fleet, gateway: Gateway) -> Process:
    """Start a worker whose only slot executes a run."""
    worker = fleet.worker(concurrency=1)
    active = send(gateway, "silent", "600", returnImmediately=True)
    eventually(lambda: state(read(gateway, "silent", active)) == "WORKING", what="the worker is busy")
    return worker


def ticks(fleet: Fleet, operator: Operator, schedule: str) -> list[datetime]:
    """Return the times of the ticks for which the schedule started tasks."""
    store = SyncStore(fleet.redis.store_url)
    try:
        names = [entry["task"] for entry in schedule_rows(operator, schedule) if entry["task"]]
        tasks = [store.run(read_task(Keys(), None, task_id)) for task_id in names]
    finally:
        store.close()
    return sorted(datetime.fromisoformat(task[0].metadata["a2a_celery/scheduledAt"]) for task in tasks if task)


def schedule_rows(operator: Operator, schedule: str) -> list[dict[str, Any]]:
    """Return the tasks and the skipped ticks of a schedule."""
    return operator.rows("list", "--schedule", schedule, "--limit", "1000")


def states(operator: Operator, schedule: str) -> Counter[str]:
    """Return the number of tasks in each state."""
    return Counter(entry["state"] for entry in schedule_rows(operator, schedule) if entry["task"])


def test_two_beats_start_each_tick_once(fleet: Fleet) -> None:
    operator = Operator(fleet)
    fleet.worker(pool="threads", concurrency=16)
    beats = [beat(fleet, number) for number in range(2)]

    eventually(lambda: states(operator, "often")["COMPLETED"] >= 4, what="ticks")
    eventually(lambda: any("was handled before" in beat.output() for beat in beats), what="a repeated tick")
    eventually(
        lambda: [entry for entry in schedule_rows(operator, "skipping") if not entry["task"]], what="a skipped tick"
    )
    eventually(lambda: states(operator, "allowing")["WORKING"] >= 2, what="tasks run beside each other")
    tasks_of_skipping = states(operator, "skipping")
    (fleet.folder / "gate").unlink()
    eventually(lambda: states(operator, "skipping")["COMPLETED"] >= 2, what="later ticks start tasks")

    assert tasks_of_skipping.total() == 1
    gaps = [(current - previous).total_seconds() for previous, current in pairwise(ticks(fleet, operator, "often"))]
    assert min(gaps) >= 0.9
    assert "the tick at" in operator("list", "--schedule", "skipping").stdout
    minutes = ticks(fleet, operator, "each-minute")
    assert len(set(minutes)) == len(minutes)
    assert {(minute.second, minute.microsecond) for minute in minutes} <= {(0, 0)}


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_entries_of_redbeat(fleet: Fleet, redbeat: ModuleType) -> None:
    operator, worker = (
        Operator(fleet, redbeat_redis_url=fleet.redis.store_url),
        fleet.worker(pool="threads", concurrency=16),
    )
    arguments = {"schedule": "stored", "agent": "echo", "message": {"stored": True}, "owner": "ops", "window": 0.9}
    redbeat.RedBeatSchedulerEntry(
        "stored", "a2a.submit_scheduled", interval(1), kwargs=arguments, app=operator.celery
    ).save()

    scheduler = beat(fleet, 0, "-S", "redbeat.RedBeatScheduler")

    for schedule in ("stored", "often"):
        eventually(lambda schedule=schedule: states(operator, schedule)["COMPLETED"] >= 2, what=schedule)
    assert "Traceback" not in worker.output()
    assert "a worker will submit the tick" not in scheduler.output()


def test_a_prefetched_tick_survives_its_worker(broker: str, tmp_path: Path) -> None:
    settings = {"A2A_LEASE_TTL": str(LEASE_TTL), "A2A_REDISPATCH_AFTER": "600"}
    with running_fleet(tmp_path, broker, app="tests.support.agents.rare_ticks", **settings) as fleet:
        operator, gateway = Operator(fleet), fleet.gateway()
        fleet.watcher()
        doomed_worker = busy_worker(fleet, gateway)
        scheduler = beat(fleet, 0)
        eventually(lambda: doomed_worker.output().count(" received") == 2, what="the worker has prefetched the tick")
        scheduler.kill()
        fleet.worker(concurrency=1)
        assert states(operator, "rare")["COMPLETED"] == 0

        doomed_worker.kill()

        eventually(
            lambda: states(operator, "rare")["COMPLETED"] == 1, within=LEASE_TTL + 5, what="the task of the tick"
        )


def test_a_tick_of_an_unavailable_store_survives_the_worker_that_has_its_message(broker: str, tmp_path: Path) -> None:
    settings = {"A2A_LEASE_TTL": str(LEASE_TTL)}
    with running_fleet(tmp_path, broker, app="tests.support.agents.rare_ticks", **settings) as fleet:
        operator, gateway = Operator(fleet), fleet.gateway()
        fleet.watcher()
        doomed_worker = busy_worker(fleet, gateway)
        with proxy(fleet.redis.store_url.removeprefix("unix://")) as store:
            store.cut()
            beat(fleet, 0, A2A_STORE_URL=f"redis://127.0.0.1:{store.port}/0")
            eventually(lambda: doomed_worker.output().count(" received") == 2, what="the worker has the message")
            doomed_worker.kill()
            killed_at = datetime.now(UTC)
            fleet.worker(concurrency=1)
            assert ticks(fleet, operator, "rare") == []

            store.restore()

            eventually(
                lambda: [tick for tick in ticks(fleet, operator, "rare") if tick < killed_at],
                what="the task of the tick",
            )
