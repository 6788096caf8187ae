"""Retries of agents on every pool and broker, as seen by clients, by Celery's events and signals, and in metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskStatusUpdateEvent

from a2a_celery.lifecycle.outcomes import AGENT_FAILED, CANCELED_BY_OPERATOR
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CAUSE, MAX_ATTEMPTS, NEXT_ATTEMPT_AT, own_metadata
from a2a_celery.store import Keys
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import rest
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import LIMIT, eventually

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
WORKED = ["SUBMITTED", "WORKING"]
AGAIN = ["artifact", "WORKING", "WORKING"]
"""Log entries of a failed attempt: an open artifact, the task without that artifact, and the retry."""
ENV = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3", "app": "tests.support.agents.retry_agents"}


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, TEST_SIGNALS=str(folder / "signals"), **ENV) as system:
        system.fleet.watcher().wait_for_output("listening for revokes")
        yield system


def texts(task: dict[str, Any]) -> list[str]:
    """Return the text of each artifact."""
    return ["".join(part["text"] for part in artifact["parts"]) for artifact in task.get("artifacts", [])]


def retries(system: SystemUnderTest, task_id: str) -> list[dict[str, Any]]:
    """Return the metadata of each status that has metadata."""
    entries = system.store.run(read_log(Keys("a2a"), task_id, 0)).entries
    events = [entry.event for entry in entries if isinstance(entry.event, TaskStatusUpdateEvent)]
    return [dict(event.metadata) for event in events if event.metadata.fields]


def signals_of(system: SystemUnderTest, task_id: str) -> list[str]:
    """Return a task's retry signals in sorted order. Celery sends ``task_retry`` after it has published the retry, so
    the next signal may be logged first."""
    return sorted(line for line in (system.fleet.folder / "signals").read_text().splitlines() if task_id in line)


def wait_for_retry(system: SystemUnderTest, task_id: str, agent: str) -> dict[str, Any]:
    """Wait until the task's metadata contains the time of the next attempt, and return the task."""

    def waiting_task() -> dict[str, Any] | None:
        task: dict[str, Any] = rest(system.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
        return task if NEXT_ATTEMPT_AT in task.get("metadata", {}) else None

    task = eventually(waiting_task, what="a retry waits")
    assert task is not None
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    return task


ENDS: list[tuple[str, str, list[str], list[str], str | None, list[str]]] = [
    # agent, message, the log, artifacts, the client's text, Celery's events
    ("flaky", "1", [*WORKED, *AGAIN, "artifact", "COMPLETED"], ["attempt 2 of run 1"], None, ["retried", "succeeded"]),
    ("flaky", "9", [*WORKED, *AGAIN, *AGAIN, "artifact", "FAILED"], ["attempt 3 "], AGENT_FAILED,
     ["retried", "retried", "failed"]),
    ("flaky", "reset", [*WORKED, "artifact", "FAILED"], ["attempt 1 "], AGENT_FAILED, ["failed"]),
    ("throttled", "", [*WORKED, "WORKING", "WORKING", "artifact", "COMPLETED"], ["attempt 2"], None,
     ["retried", "succeeded"]),
    ("blocking-later", "", [*WORKED, "WORKING", "WORKING", "artifact", "COMPLETED"], ["later"], None,
     ["retried", "succeeded"]),
    ("gives-up", "", [*WORKED, "WORKING", "artifact", "COMPLETED"], ["gave up after 1"], None,
     ["retried", "succeeded"]),
    ("gives-up", "raises", [*WORKED, "WORKING", "FAILED"], [], AGENT_FAILED, ["retried", "failed"]),
    ("gives-up", "fails", [*WORKED, "WORKING", "FAILED"], [], "Enough.", ["retried", "failed"]),
    ("flaky-executor", "1", ["SUBMITTED", "WORKING", "artifact", "COMPLETED"], ["attempt 2"], None,
     ["retried", "succeeded"]),
    ("flaky-executor", "9", ["SUBMITTED", "WORKING", "FAILED"], [], AGENT_FAILED, ["retried", "failed"]),
]  # fmt: skip


@pytest.mark.each_kind
@pytest.mark.parametrize(
    ("agent", "message", "log", "expected_log", "text", "events"),
    ENDS,
    ids=[f"{row[0]} {row[1]}".strip() for row in ENDS],
)
def test_a_run_is_retried_and_ends_once(
    system: SystemUnderTest,
    agent: str,
    message: str,
    log: list[str],
    expected_log: list[str],
    text: str | None,
    events: list[str],
) -> None:
    task_id = system.send(agent, message)

    task = system.wait_for_end(agent, task_id)

    assert (texts(task), text_of(task)) == (expected_log, text)
    assert system.log(task_id) == log
    eventually(lambda: len(system.events.ends_of(f"{task_id}.1")) >= len(events), what=f"{events}")
    assert sorted(system.events.ends_of(f"{task_id}.1")) == sorted(
        events
    )  # events of consecutive attempts may arrive in any order
    own = [event for event in system.events.whole if event.get("uuid", "").startswith(task_id)]
    assert own
    assert "a secret" not in str(task) + str(own) + str(retries(system, task_id))


@pytest.mark.each_kind
def test_a_retry_is_a_status_a_signal_and_a_metric(system: SystemUnderTest) -> None:
    retries_before = retried_total(system, "flaky-function")
    task_id = system.send("flaky-function", "2")

    task = system.wait_for_end("flaky-function", task_id)

    assert texts(task) == ["attempt 3"]
    assert task["metadata"] == own_metadata({ATTEMPT: 3, MAX_ATTEMPTS: 3})
    attempts = [(each[f"a2a_celery/{ATTEMPT}"], each[f"a2a_celery/{CAUSE}"]) for each in retries(system, task_id)]
    assert attempts == [(2, "ConnectionError"), (3, "ConnectionError")]
    name = f"a2a.flaky-function {task_id}.1"
    signal_lines = [f"{name} {number} RunRetried('ConnectionError')" for number in (0, 1)]
    eventually(lambda: signals_of(system, task_id) == signal_lines, what="a signal for each retry")
    eventually(lambda: retried_total(system, "flaky-function") == retries_before + 2, what="the metric")


def retried_total(system: SystemUnderTest, agent: str) -> float:
    """Return the value of ``a2a_runs_retried_total`` for an agent."""
    lines = httpx.get(f"{system.gateway.url}/metrics", timeout=LIMIT).text.splitlines()
    [line] = [line for line in lines if line.startswith(f'a2a_runs_retried_total{{agent="{agent}"}}')]
    return float(line.split()[1])


@pytest.mark.each_kind
def test_a_retry_has_the_state_of_its_turn_and_frees_its_slot(system: SystemUnderTest) -> None:
    task_id = ask_question(system, "1")
    system.send("later", "Ann", task_id=task_id)

    task = system.wait_for_end("later", task_id)

    assert texts(task) == ["Ann, Ann, turn 2"]
    assert task["metadata"] == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 2})


@pytest.mark.each_kind
@pytest.mark.parametrize("delay", ["300", "3600"], ids=["published", "held by the store"])
def test_a_retry_that_waits_is_canceled_at_once(system: SystemUnderTest, delay: str) -> None:
    task_ids = [ask_question(system, delay) for _ in range(3)]  # more tasks than slots
    for task_id in task_ids:
        system.send("later", "Ann", task_id=task_id)
    for task_id in task_ids:
        assert wait_for_retry(system, task_id, "later")["metadata"][f"a2a_celery/{CAUSE}"] == "LookupError"

        canceled_task = rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", agent="later").json()

        assert canceled_task["status"]["state"] == "TASK_STATE_CANCELED"
        assert canceled_task["metadata"] == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 2})
    system.require_working()


@pytest.mark.each_kind
@pytest.mark.parametrize("terminate", [False, True], ids=["revoke", "terminate"])
def test_a_retry_that_waits_is_canceled_when_an_operator_revokes_it(system: SystemUnderTest, terminate: bool) -> None:
    task_id = ask_question(system, "300")
    system.send("later", "Ann", task_id=task_id)
    wait_for_retry(system, task_id, "later")

    system.celery.control.revoke(f"{task_id}.2", terminate=terminate)

    task = system.wait_for_end("later", task_id)
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert text_of(task) == CANCELED_BY_OPERATOR
    system.require_working()


def ask_question(system: SystemUnderTest, delay: str) -> str:
    """Send a message, and wait until the agent has asked. Return the task's id."""
    task_id = system.send("later", delay)
    eventually(lambda: system.is_in(task_id, "INPUT_REQUIRED"), what="it asks")
    return task_id


@pytest.mark.each_kind
@pytest.mark.parametrize("loss", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_retry_outlives_the_worker_that_waits_for_its_time(tmp_path: Path, broker: str, pool: str, loss: str) -> None:
    with running_system(tmp_path, pool, broker, TEST_SIGNALS=str(tmp_path / "signals"), **ENV) as system:
        system.fleet.watcher()
        task_id = ask_question(system, "3")
        system.send("later", "Ann", task_id=task_id)
        wait_for_retry(system, task_id, "later")

        if loss == "SIGKILL":
            system.worker.kill()
        else:
            system.worker.stop()
        system.fleet.worker(pool=pool, concurrency=2)

        task = system.wait_for_end("later", task_id)
        assert texts(task) == ["Ann, Ann, turn 2"]
        assert task["metadata"] == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 2})


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", POOLS)
def test_retries_and_attempts_after_lost_workers_are_counted_apart(tmp_path: Path, broker: str, pool: str) -> None:
    with running_system(tmp_path, pool, broker, TEST_SIGNALS=str(tmp_path / "signals"), **ENV) as system:
        system.fleet.watcher()
        task_id = system.send("lost-and-retried")
        eventually(lambda: len(retries(system, task_id)) == 1 and is_claimed(system, task_id), what="the retry runs")

        system.worker.kill()
        system.fleet.worker(pool=pool, concurrency=2)

        task = system.wait_for_end("lost-and-retried", task_id)
        assert texts(task) == ["attempt 2, 2 retries"]
        expected_attempts = [
            {ATTEMPT: 2, MAX_ATTEMPTS: 3},
            {ATTEMPT: 2, MAX_ATTEMPTS: 2},
            {ATTEMPT: 3, MAX_ATTEMPTS: 3},
        ]
        names = own_metadata({ATTEMPT: 0, MAX_ATTEMPTS: 0})
        attempts = [{name: each[name] for name in names} for each in retries(system, task_id)]
        assert attempts == [own_metadata(fields) for fields in expected_attempts]


def is_claimed(system: SystemUnderTest, task_id: str) -> bool:
    """Return True if a worker holds the lease of the task's first run."""
    return system.store.redis.zscore(Keys("a2a").leases, f"{task_id}.1") is not None
