"""Workers with two versions of an agent's code. The version that began a turn also completes it, even if workers are
killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery

from a2a_celery.settings import DEFAULT_KEY_PREFIX
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.admin.version_workers import VersionWorker, version_workers
from tests.conftest import require_broker
from tests.support.agents.version_agents import STEPS
from tests.support.clients.talk import HEADERS, TIMEOUT, read, send, state
from tests.support.processes.consumers import stop_consuming
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually
from tests.tiers import FIRST_CELL, at_night

CELLS = [
    *(("prefork", "redis"), ("threads", "redis"), ("asyncio", "redis")),
    *(("prefork", "rabbitmq"), ("threads", "rabbitmq")),
]
AGENTS = ("versions", "asks", "changes")


class TwoVersions:
    """Fleet with workers of versions "1" and "2" of the same agents. Leases are short, so that watchers quickly
    recover lost runs."""

    def __init__(self, fleet: Fleet, pool: str) -> None:
        self.fleet = fleet
        self._pool = pool
        self._store = SyncStore(fleet.redis.store_url)
        self._nodes: dict[Process, str] = {}
        fleet.queues += [f"{fleet.queue}.{agent}.{version}" for agent in AGENTS for version in "12"]
        self.gateway: Gateway = fleet.gateway()
        fleet.watcher()

    def worker(self, version: str) -> Process:
        """Start a worker with a version, and wait until it has announced its version queues."""
        known_workers = {live_worker.worker for live_worker in self.live_workers()}
        worker = self.fleet.worker(pool=self._pool, concurrency=4, TEST_VERSION=version)
        [self._nodes[worker]] = eventually(
            lambda: {s.worker for s in self.live_workers()} - known_workers, what="it is known"
        )
        return worker

    def live_workers(self) -> list[VersionWorker]:
        """Return an entry for each version queue that a worker has announced."""
        return self._store.run(version_workers(Keys(DEFAULT_KEY_PREFIX)))

    def leave_queue(self, worker: Process) -> None:
        """Make a worker consume only its version queues, so that other workers receive all newly published runs."""
        with Celery(broker=self.fleet.broker_url, set_as_current=False) as app:
            stop_consuming(app, self._nodes[worker], self.fleet.queue)

    def stop(self, worker: Process) -> None:
        """Stop a worker, and wait until its version queues are withdrawn."""
        worker.stop()
        eventually(
            lambda: self._nodes[worker] not in {live_worker.worker for live_worker in self.live_workers()},
            what="withdrawn",
        )

    def send(self, agent: str) -> dict[str, Any]:
        """Send a message to an agent, and return the task without waiting for it to finish."""
        return send(self.gateway, agent, agent, returnImmediately=True)

    def wait_for_end(self, agent: str, task: dict[str, Any]) -> dict[str, Any]:
        """Wait until the task is neither queued nor running, and return the task."""
        eventually(lambda: state(read(self.gateway, agent, task)) not in ("SUBMITTED", "WORKING"), what=f"{agent} ends")
        return read(self.gateway, agent, task)

    def create_question(self, agent: str) -> dict[str, Any]:
        """Send a message to an agent, wait until the agent has asked a question, and return the task."""
        task = self.wait_for_end(agent, self.send(agent))
        assert state(task) == "INPUT_REQUIRED", task
        return task

    def answer_question(self, agent: str, task: dict[str, Any]) -> dict[str, Any]:
        """Answer the question of a task, wait for the end of the turn, and return the task."""
        message = {"messageId": "answer", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"text": "yes"}]}
        url = f"{self.gateway.url}/agents/{agent}/message:send"
        reply = httpx.post(url, json={"message": message}, headers=HEADERS, timeout=TIMEOUT)
        assert reply.status_code == 200, reply.text
        return self.wait_for_end(agent, task)

    def requeue(self, agent: str, task: dict[str, Any], *options: str) -> dict[str, Any]:
        """Requeue the dead letter of a task, wait until the new task has finished, and return the new task."""
        result = self.fleet.command("a2a", "requeue", task["id"], *options)
        assert result.returncode == 0, result.stderr
        return self.wait_for_end(agent, {"id": result.stdout.split(" → ")[1].split()[0].rstrip(":")})


@contextmanager
def two_versions(folder: Path, pool: str, broker: str) -> Iterator[TwoVersions]:
    """Run a fleet whose agents write to `folder`."""
    env = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(folder)}
    with running_fleet(folder, broker, app="tests.support.agents.version_agents", **env) as fleet:
        yield TwoVersions(fleet, pool)


def text_of(task: dict[str, Any]) -> str:
    """Return the text of the only artifact of a completed task."""
    assert state(task) == "COMPLETED", task
    [artifact] = task["artifacts"]
    return str(artifact["parts"][0]["text"])


@pytest.mark.each_kind
@pytest.mark.parametrize(("pool", "broker"), at_night(CELLS, merge=[FIRST_CELL, ("threads", "rabbitmq")]))
def test_a_turn_ends_on_its_version_although_workers_are_killed(tmp_path: Path, pool: str, broker: str) -> None:
    require_broker(broker)
    with two_versions(tmp_path, pool, broker) as versions:
        first = versions.worker("1")
        task = versions.send("versions")
        newer = versions.worker("2")
        for n in range(STEPS):
            eventually((tmp_path / f"versions.after-{n}").exists, what=f"the agent has made step {n}")
            second = versions.worker("1")
            versions.leave_queue(second)
            first.kill()
            first = second

        assert text_of(versions.wait_for_end("versions", task)) == "0 by 1, 1 by 1, 2 by 1"
        assert newer.output().count("was published for workers with version 1") >= STEPS
        assert text_of(versions.answer_question("asks", versions.create_question("asks"))) == "0 by 2, yes, 1 by 2", (
            "new tasks"
        )


@pytest.mark.merge
def test_the_turn_of_an_answer_ends_on_the_version_that_asked(tmp_path: Path) -> None:
    with two_versions(tmp_path, "prefork", "redis") as versions:
        older = versions.worker("1")
        task = versions.create_question("asks")
        versions.worker("2")
        versions.leave_queue(older)

        assert text_of(versions.answer_question("asks", task)) == "0 by 1, yes, 1 by 1"


@pytest.mark.merge
def test_operators_see_the_version_of_open_tasks(tmp_path: Path) -> None:
    with two_versions(tmp_path, "prefork", "redis") as versions:
        worker = versions.worker("1")
        task = versions.create_question("asks")
        fleet, series = versions.fleet, 'a2a_version_tasks{agent="asks",version="1"} 1.0'

        eventually(lambda: series in httpx.get(f"{versions.gateway.url}/metrics").text, what="the metric shows it")
        assert "(asks, version 1, context" in fleet.command("a2a", "get", task["id"], "--execution").stdout
        assert "agent asks: version 1 has open tasks: 1, and workers: 1" in fleet.command("a2a", "doctor").stdout
        versions.stop(worker)
        assert "began with version 1, which no worker has: 1." in fleet.command("a2a", "doctor").stdout


@pytest.mark.merge
def test_another_version_continues_when_no_worker_of_the_first_lives(tmp_path: Path) -> None:
    with two_versions(tmp_path, "prefork", "redis") as versions:
        older = versions.worker("1")
        task = versions.create_question("asks")
        versions.stop(older)
        newer = versions.worker("2")

        assert text_of(versions.answer_question("asks", task)) == "0 by 1, yes, 1 by 2"
        assert "began with version 1 of agent 'asks', which no worker has" in newer.output()


@pytest.mark.merge
@pytest.mark.parametrize("pool", ["asyncio", "prefork"])
def test_another_version_continues_when_the_last_worker_of_the_first_is_killed(tmp_path: Path, pool: str) -> None:
    with two_versions(tmp_path, pool, "redis") as versions:
        older = versions.worker("1")
        task = versions.send("versions")
        eventually((tmp_path / "versions.after-0").exists, what="the agent has made its first step")
        for n in range(1, STEPS):
            (tmp_path / f"versions.after-{n}").touch()  # so that the next run does not hang
        newer = versions.worker("2")
        older.kill()

        assert text_of(versions.wait_for_end("versions", task)) == "0 by 1, 1 by 2, 2 by 2"
        assert "began with version 1 of agent 'versions', which no worker has" in newer.output()
        assert "1" not in {live_worker.code_version for live_worker in versions.live_workers()}, (
            "a killed worker counts for a time"
        )


@pytest.mark.merge
@pytest.mark.parametrize("from_start", [False, True], ids=["on its version", "from the start"])
def test_another_version_whose_steps_differ_ends_the_task_with_a_remedy(tmp_path: Path, from_start: bool) -> None:
    with two_versions(tmp_path, "prefork", "redis") as versions:
        older = versions.worker("1")
        task = versions.create_question("changes")
        versions.stop(older)
        newer = versions.worker("2")
        failed_task = versions.answer_question("changes", task)
        assert state(failed_task) == "FAILED"
        assert "Start a worker with version 1 and requeue the task (a2a requeue TASK)" in newer.output()

        if from_start:
            requeued_task = versions.requeue("changes", failed_task, "--from-start")
        else:
            versions.leave_queue(versions.worker("1"))
            requeued_task = versions.requeue("changes", failed_task)

        assert text_of(requeued_task) == ("other 0 by 2, yes" if from_start else "0 by 1, yes")
