"""Schedules with two ``celery beat`` processes and a worker, on each broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.schedules import schedule as interval

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.tasks.commands import read_task
from tests.support.fleet import Fleet, Process, running_fleet
from tests.support.operator import Operator
from tests.support.waiting import eventually

APP = "tests.support.scheduled_agents"


pytestmark = pytest.mark.each_kind


@pytest.fixture
def fleet(broker: str, tmp_path: Path) -> Iterator[Fleet]:
    gate = tmp_path / "gate"
    gate.touch()
    with running_fleet(tmp_path, broker, app=APP, TEST_GATE=str(gate)) as fleet:
        yield fleet


def beat(fleet: Fleet, number: int, *options: str) -> Process:
    """Start a beat process with its own schedule file."""
    file = fleet.folder / f"beat-{number}.schedule"
    return fleet.start(f"beat-{number}", "beat", "-l", "INFO", "-s", str(file), "--pidfile=", *options)


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
    operator, worker = Operator(fleet), fleet.worker(pool="threads", concurrency=16)
    for number in range(2):
        beat(fleet, number)

    eventually(lambda: states(operator, "often")["COMPLETED"] >= 4, what="ticks")
    worker.wait_for_output("was handled before")
    eventually(
        lambda: [entry for entry in schedule_rows(operator, "skipping") if not entry["task"]], what="a skipped tick"
    )
    eventually(lambda: states(operator, "queueing")["SUBMITTED"] >= 2, what="tasks wait")
    eventually(lambda: states(operator, "cancelling")["CANCELED"] >= 2, what="cancelled tasks")
    running_tasks = [states(operator, schedule) for schedule in ("skipping", "queueing", "cancelling")]
    (fleet.folder / "gate").unlink()
    eventually(lambda: states(operator, "skipping")["COMPLETED"] >= 2, what="later ticks start tasks")
    eventually(lambda: states(operator, "queueing")["COMPLETED"] >= 2, what="waiting tasks run")

    assert [count["WORKING"] <= 1 for count in running_tasks] == [True] * 3
    assert running_tasks[0].total() == 1
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

    beat(fleet, 0, "-S", "redbeat.RedBeatScheduler")

    for schedule in ("stored", "often"):
        eventually(lambda schedule=schedule: states(operator, schedule)["COMPLETED"] >= 2, what=schedule)
    assert "Traceback" not in worker.output()
