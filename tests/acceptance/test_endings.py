"""Outcomes of runs on every pool and broker. Each outcome is one A2A event with a fixed text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2a_celery.lifecycle.outcomes import (
    AGENT_FAILED,
    AGENT_REFUSED,
    AGENT_UNKNOWN,
    CANCELED_BY_AGENT,
    CANCELED_BY_CLIENT,
    CANCELED_BY_OPERATOR,
    NOT_BEGUN_IN_TIME,
    OUT_OF_TIME,
    WORKER_LOST,
)
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.store import Keys
from tests.support.clients.bindings import rest
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import eventually

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
NOWHERE = "redis://127.0.0.1:1/0"
"""URL of a result backend that is not available."""


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    with running_system(tmp_path_factory.mktemp(request.param), request.param, broker) as system:
        yield system


WORKED = ["SUBMITTED", "WORKING"]

ENDS: list[tuple[str, str, list[str], str | None, str]] = [
    # agent, message, the log, the client's text, Celery's event
    ("echo", "hi", [*WORKED, "artifact", "COMPLETED"], None, "succeeded"),
    ("fail", "", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("refuse", "", [*WORKED, "REJECTED"], "Not today.", "refused"),
    ("ask", "", [*WORKED, "INPUT_REQUIRED"], "How many?", "input_required"),
    ("ends", "sys.exit", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("ends", "SystemExit", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("ends", "KeyboardInterrupt", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("ends", "MemoryError", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("sync-ends", "sys.exit", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("sync-ends", "KeyboardInterrupt", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("sync-ends", "MemoryError", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("sync-ends", "StopIteration", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("sync-ends", "missing await", [*WORKED, "FAILED"], AGENT_FAILED, "failed"),
    ("ends", "CancelledError", [*WORKED, "CANCELED"], CANCELED_BY_AGENT, "revoked"),
    ("sync-ends", "CancelledError", [*WORKED, "CANCELED"], CANCELED_BY_AGENT, "revoked"),
    ("ends", "Reject", [*WORKED, "REJECTED"], AGENT_REFUSED, "refused"),
    ("exits-when-loaded", "", ["SUBMITTED", "FAILED"], AGENT_FAILED, "failed"),
    ("limited", "", [*WORKED, "artifact", "FAILED"], OUT_OF_TIME, "failed"),
    ("idle", "", [*WORKED, "artifact", "FAILED"], OUT_OF_TIME, "failed"),
    ("framework", "", [*WORKED, "FAILED"], OUT_OF_TIME, "failed"),
]


FORCED = ("ends", "sync-ends", "exits-when-loaded", "limited", "idle", "framework")
"""Agents whose outcome depends on the pool, because of forced termination, a time limit, or an exception that exits a
process."""


@pytest.mark.parametrize(
    ("agent", "message", "log", "text", "event"),
    [pytest.param(*row, marks=pytest.mark.every_cell if row[0] in FORCED else ()) for row in ENDS],
    ids=lambda value: str(value)[:20],
)
def test_a_run_ends_once_with_its_sentence(
    system: SystemUnderTest, agent: str, message: str, log: list[str], text: str | None, event: str
) -> None:
    task_id = system.send(agent, message)

    task = system.wait_for_end(agent, task_id)

    assert text_of(task) == text
    assert "secret" not in str(task)
    system.require_celery_events(task_id, event)
    assert system.log(task_id) == log
    system.require_working()


def test_what_failed_can_be_found_in_the_workers_log(system: SystemUnderTest) -> None:
    task = system.wait_for_end("ends", system.send("ends", "MemoryError"))

    assert task["status"]["message"]["metadata"]["reference"] in system.worker.output()


@pytest.mark.every_cell
def test_revoked_before_it_began(system: SystemUnderTest) -> None:
    with system.pause_consumer():
        task_id = system.send("echo", "hello")
        system.revoke(task_id)

    assert text_of(system.wait_for_end("echo", task_id)) == CANCELED_BY_OPERATOR
    system.require_celery_events(task_id, "revoked")
    assert system.log(task_id) == ["SUBMITTED", "CANCELED"]


def test_expired_in_its_queue(system: SystemUnderTest) -> None:
    with system.pause_consumer():
        task_id = system.send("perishable", "hello")
        send_time = time.monotonic()
        eventually(lambda: time.monotonic() > send_time + 2, what="it expires")

    assert text_of(system.wait_for_end("perishable", task_id)) == NOT_BEGUN_IN_TIME
    system.require_celery_events(task_id, "revoked")
    assert system.log(task_id) == ["SUBMITTED", "REJECTED"]


def test_a_worker_that_does_not_know_the_agent(system: SystemUnderTest) -> None:
    task_id = system.send("ghost", "hello")

    assert text_of(system.wait_for_end("ghost", task_id)) == AGENT_UNKNOWN
    system.require_celery_events(task_id, "failed")
    assert system.log(task_id) == ["SUBMITTED", "REJECTED"]
    system.require_working()


@pytest.mark.every_cell
@pytest.mark.parametrize("copy", ["expired", "revoked"])
def test_the_end_of_a_copy_is_not_the_end_of_the_run(system: SystemUnderTest, tmp_path: Path, copy: str) -> None:
    if system.pool == "solo":  # a solo worker fetches the copy only after the run has ended
        return
    may_end = tmp_path / "may-end"
    task_id = system.send("until", str(may_end))
    eventually(lambda: system.is_in(task_id, "WORKING"))
    if copy == "revoked":
        system.revoke(task_id)
    options = {"expires": -5} if copy == "expired" else {}
    system.celery.send_task("a2a.until", (task_id, 1), task_id=f"{task_id}.1", queue=system.fleet.queue, **options)
    system.require_celery_events(task_id, "revoked")
    may_end.touch()

    system.wait_for_end("until", task_id)

    assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]
    system.require_celery_events(task_id, "revoked", "succeeded")


@pytest.mark.every_cell
@pytest.mark.parametrize("cause", ["os._exit", "SIGKILL"])
def test_a_lost_child_process_fails_its_run(system: SystemUnderTest, cause: str) -> None:
    if system.pool != "prefork":  # the whole worker is lost, and a watcher fails the run
        return
    task_id = system.send("ends", cause)

    assert text_of(system.wait_for_end("ends", task_id)) == WORKER_LOST
    system.require_celery_events(task_id, "failed")
    assert system.log(task_id) == [*WORKED, "FAILED"]
    system.require_working()


@pytest.mark.every_cell
def test_terminated_while_it_runs(system: SystemUnderTest) -> None:
    task_id = system.send("silent", "2" if system.pool == "solo" else "60")
    eventually(lambda: system.is_in(task_id, "WORKING"))

    system.celery.control.revoke(f"{task_id}.1", terminate=True)

    task = system.wait_for_end("silent", task_id)
    if system.pool == "solo":  # a busy solo worker reads no broadcast, but a watcher does: see test_revokes.py
        assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]
    else:
        assert text_of(task) == CANCELED_BY_OPERATOR
        assert task["status"]["message"]["metadata"] == own_metadata({"command": "terminate"})
        assert system.log(task_id) == [*WORKED, "CANCELED"]
    system.require_working()
    if system.pool != "solo":
        system.require_celery_events(task_id, "revoked")


@pytest.mark.every_cell
@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_terminated_after_its_client_asked_to_cancel(system: SystemUnderTest, signal: str) -> None:
    if system.pool != "prefork":
        return
    task_id = system.send("stuck", "60")
    eventually(lambda: system.is_in(task_id, "WORKING"))
    record_key = Keys("a2a").task(task_id).record
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(rest, system.gateway, "POST", f"/tasks/{task_id}:cancel", agent="stuck")
        eventually(lambda: system.store.redis.hget(record_key, "cancel_requested") == b"1")
        system.celery.control.revoke(f"{task_id}.1", terminate=True, signal=signal)
        assert answer.result().json()["status"]["state"] == "TASK_STATE_CANCELED"

    assert text_of(system.wait_for_end("stuck", task_id)) == CANCELED_BY_CLIENT
    system.require_celery_events(task_id, "revoked")
    assert system.log(task_id) == [*WORKED, "CANCELED"]
    system.require_working()
