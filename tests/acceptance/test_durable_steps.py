"""Durable steps on real workers that are killed between every two steps. Finished steps are not repeated."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import Keys
from tests.support.agents.durable_agents import LARGE, STEPS, lines, places
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually
from tests.tiers import at_night

AGENTS = ("steps", "blocking-steps")
RESULT = ", ".join(f"result {n}" for n in range(STEPS))
LARGE_RESULT = sha256(b"".join(bytes([n]) * LARGE for n in range(STEPS))).hexdigest()


@contextmanager
def fleet_on(folder: Path, broker: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> Iterator[Fleet]:
    """Run a fleet with short leases whose agents write to `folder`."""
    monkeypatch.setenv("TEST_FOLDER", str(folder))
    env = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(folder), **more}
    with running_fleet(folder, broker, app="tests.support.agents.durable_agents", **env) as fleet:
        yield fleet


def wait_until_reached(folder: Path, place: str) -> None:
    """Wait until an agent hangs at a place."""
    eventually((folder / place).exists, what=f"the agent is at {place}")


def expire_lease(fleet: Fleet, task: dict[str, Any]) -> None:
    """Expire the lease of the first run of a task, whose worker was killed."""
    with redis.Redis.from_url(fleet.redis.store_url) as client:
        assert client.zadd(Keys("a2a").leases, {RunRef(task["id"], 1).name: 1}, xx=True, ch=True) == 1


def text_of(task: dict[str, Any]) -> str:
    """Return the text of the only artifact of a task."""
    [artifact] = task["artifacts"]
    return str(artifact["parts"][0]["text"])


def require_ended(gateway: Gateway, agent: str, task: dict[str, Any], text: str) -> None:
    """Wait until a task has finished, and require that it is COMPLETED with the result `text`."""
    eventually(lambda: state(read(gateway, agent, task)) not in ("SUBMITTED", "WORKING"), what=f"{agent} ends")
    ended_task = read(gateway, agent, task)
    assert state(ended_task) == "COMPLETED", ended_task
    assert text_of(ended_task) == text


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_steps_on_workers_that_are_killed_between_every_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, broker: str
) -> None:
    with fleet_on(tmp_path, broker, monkeypatch) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=4)
        tasks = {agent: send(gateway, agent, agent, returnImmediately=True) for agent in AGENTS}
        for stops in zip(*map(places, AGENTS), strict=True):
            for place in stops:
                wait_until_reached(tmp_path, place)
            worker.kill()
            worker = fleet.worker(pool=pool, concurrency=4)

        for agent in AGENTS:
            require_ended(gateway, agent, tasks[agent], RESULT)
            assert Counter(lines(agent, "executed")) == {"0": 1, "1": 2, "2": 1}, "the step that was killed, twice"
            assert lines(agent, "effects") == ["0", "1", "2"], "each effect once"


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", at_night(["prefork", "threads", "asyncio"], merge=["prefork", "asyncio"]))
def test_steps_of_a_worker_that_shuts_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str) -> None:
    with fleet_on(tmp_path, "redis", monkeypatch) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=4)
        task = send(gateway, "parallel-steps", "parallel", returnImmediately=True)
        wait_until_reached(tmp_path, "parallel.after-0")
        worker.signal(signal.SIGQUIT)
        fleet.worker(pool=pool, concurrency=4)

        require_ended(gateway, "parallel-steps", task, RESULT)
        assert sorted(lines("parallel", "executed")) == ["0", "1", "2"]


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", at_night(["prefork", "threads", "asyncio"], merge=["prefork", "asyncio"]))
def test_a_step_that_is_being_executed_when_its_worker_shuts_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    with fleet_on(tmp_path, "redis", monkeypatch) as fleet:
        for n in range(STEPS):
            (tmp_path / f"async.after-{n}").touch()  # the agent stops only within step 1
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=4)
        async_task = send(gateway, "steps", "async", returnImmediately=True)
        plain_task = send(gateway, "thread-step", "plain", returnImmediately=True)
        wait_until_reached(tmp_path, "async.in-1")
        wait_until_reached(tmp_path, "plain.executed")
        worker.signal(signal.SIGQUIT)
        fleet.worker(pool=pool, concurrency=4)
        eventually(lambda: lines("plain", "executed") == ["0", "0"], what="the plain step is executed again")
        (tmp_path / "plain.may-end").touch()

        require_ended(gateway, "steps", async_task, RESULT)
        require_ended(gateway, "thread-step", plain_task, "result 0")
        assert Counter(lines("async", "executed")) == {"0": 1, "1": 2, "2": 1}
        assert lines("async", "effects") == ["0", "1", "2"]
        assert lines("plain", "effects") == ["0"]


@pytest.mark.merge
@pytest.mark.parametrize("from_start", [False, True], ids=["with its steps", "from the start"])
def test_steps_of_a_task_that_is_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_start: bool) -> None:
    with fleet_on(tmp_path, "redis", monkeypatch) as fleet:
        gateway, worker, _ = fleet.gateway(), fleet.worker(), fleet.watcher()
        task = send(gateway, "once", "once", returnImmediately=True)
        wait_until_reached(tmp_path, "once.after-0")
        worker.kill()
        eventually(lambda: state(read(gateway, "once", task)) == "FAILED", what="the task is failed")
        fleet.worker()

        result = fleet.command("a2a", "requeue", task["id"], *(["--from-start"] if from_start else []))

        assert result.returncode == 0, result.stderr
        new = {"id": result.stdout.split(" → ")[1].split()[0].rstrip(":")}
        require_ended(gateway, "once", new, "result 0, result 2")
        assert lines("once", "executed") == (["0", "0", "2"] if from_start else ["0", "2"])


def large_files(blobs: Path) -> list[Path]:
    """Return the files of all large results. Each journal has one folder."""
    return [path for path in blobs.rglob("journal-*/*") if path.stat().st_size == LARGE]


@pytest.mark.merge
def test_large_results_on_workers_that_are_killed_and_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = tmp_path / "blobs"
    with fleet_on(tmp_path, "redis", monkeypatch, A2A_BLOB_URL=blobs.as_uri()) as fleet:
        gateway, _, worker = fleet.gateway(), fleet.watcher(), fleet.worker()
        task = send(gateway, "large-results", "large", returnImmediately=True)
        wait_until_reached(tmp_path, "large.after-0")
        worker.kill()
        worker = fleet.worker()
        wait_until_reached(tmp_path, "large.after-1")
        assert len(large_files(blobs)) == 2
        worker.signal(signal.SIGQUIT)
        fleet.worker()

        require_ended(gateway, "large-results", task, LARGE_RESULT)
        assert lines("large", "executed") == ["0", "1", "2"]
        eventually(lambda: not large_files(blobs), what="the large results are removed")


@pytest.mark.parametrize("from_start", at_night([False, True], merge=[False]), ids=["with its steps", "from the start"])
def test_large_results_of_a_task_that_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_start: bool
) -> None:
    blobs = tmp_path / "blobs"
    with fleet_on(tmp_path, "redis", monkeypatch, A2A_BLOB_URL=blobs.as_uri()) as fleet:
        gateway, worker, _ = fleet.gateway(), fleet.worker(), fleet.watcher()
        task = send(gateway, "large-once", "large", returnImmediately=True)
        wait_until_reached(tmp_path, "large.after-0")
        worker.kill()
        eventually(lambda: state(read(gateway, "large-once", task)) == "FAILED", what="the task is failed")
        assert len(large_files(blobs)) == 1, "the dead letter has its result"
        fleet.worker()

        result = fleet.command("a2a", "requeue", task["id"], *(["--from-start"] if from_start else []))

        assert result.returncode == 0, result.stderr
        new = {"id": result.stdout.split(" → ")[1].split()[0].rstrip(":")}
        require_ended(gateway, "large-once", new, LARGE_RESULT)
        assert lines("large", "executed") == (["0", "0", "1", "2"] if from_start else ["0", "1", "2"])
        eventually(lambda: not large_files(blobs), what="the large results of both tasks are removed")


@pytest.mark.change
def test_a_step_is_not_repeated_by_the_next_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_on(tmp_path, "redis", monkeypatch) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker: Process = fleet.worker()
        task = send(gateway, "waits", "waits", returnImmediately=True)
        wait_until_reached(tmp_path, "waits.after-0")
        worker.kill()
        expire_lease(fleet, task)
        fleet.worker()

        require_ended(gateway, "waits", task, "result 0")
        assert lines("waits", "executed") == ["0"]
