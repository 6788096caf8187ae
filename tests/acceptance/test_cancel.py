"""Cancellation of running agents, first cooperatively and then, on prefork, by force. An agent stops before its task is
CANCELED."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT, OUT_OF_TIME
from tests.acceptance.test_endings import POOLS, WORKED
from tests.support.clients import talk
from tests.support.clients.bindings import rest
from tests.support.processes.fleet import running_fleet
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

GRACE = 1.0
IGNORED = "ignores the stop"
SETTINGS = {"app": "tests.support.agents.cancels", "A2A_CANCEL_GRACE": f"{GRACE:g}"}
PATIENT = SETTINGS | {"A2A_CANCEL_GRACE": "4"}
"""Settings whose grace period suffices for cooperative agents, even on a loaded machine."""


@pytest.fixture(scope="module", params=POOLS)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderTest]:
    with running_system(tmp_path_factory.mktemp(request.param), request.param, **PATIENT) as system:
        yield system


@pytest.fixture(scope="module")
def prefork(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[SystemUnderTest]:
    with running_system(tmp_path_factory.mktemp("prefork"), "prefork", broker, **SETTINGS) as system:
        yield system


def cancel(system: SystemUnderTest, agent: str, task_id: str) -> dict[str, Any]:
    """Cancel the task and return the task from the response."""
    answer: dict[str, Any] = rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", agent=agent).json()
    return answer


def cancel_task(system: SystemUnderTest, agent: str, task_id: str) -> dict[str, Any]:
    """Cancel the task, wait until it is terminal, and return it. CancelTask responds shortly after the grace period,
    even if the task is still WORKING."""
    task = cancel(system, agent, task_id)
    return system.wait_for_end(agent, task_id) if task["status"]["state"] == "TASK_STATE_WORKING" else task


def begin_task(system: SystemUnderTest, agent: str, marks: Path) -> str:
    """Send a message, and wait until the agent has made its first mark. Return the task's id."""
    task_id = system.send(agent, str(marks))
    eventually(lambda: marks.exists() and marks.stat().st_size > 0, what=f"{agent} works")
    return task_id


@contextmanager
def nothing_more_in(marks: Path) -> Iterator[None]:
    """Require that the agent makes no mark while the block runs, and for at least half a second."""
    until = time.monotonic() + 0.5
    size = marks.stat().st_size
    yield
    eventually(lambda: time.monotonic() > until)
    assert marks.stat().st_size == size, "its agent still works"


@pytest.mark.parametrize("agent", ["deaf-function", "swallows", "blocks-the-loop"])
def test_an_agent_that_ignores_its_cancel_is_ended_with_its_process(
    prefork: SystemUnderTest, tmp_path: Path, agent: str
) -> None:
    marks = tmp_path / "marks"
    task_id = begin_task(prefork, agent, marks)

    task = cancel_task(prefork, agent, task_id)

    with nothing_more_in(marks):
        assert task["status"]["state"] == "TASK_STATE_CANCELED"
        assert text_of(task) == CANCELED_BY_CLIENT
        prefork.require_celery_events(task_id, "revoked")
        assert IGNORED in prefork.worker.output()
    for _ in range(3):  # most likely reaches each child of the pool
        prefork.require_working()
    assert prefork.log(task_id) == [*WORKED, "CANCELED"]


@pytest.mark.parametrize("agent", ["limited-function", "limited-swallows", "limited-blocks", "idle-blocks"])
def test_an_agent_that_ignores_its_limit_is_ended_with_its_process(
    prefork: SystemUnderTest, tmp_path: Path, agent: str
) -> None:
    marks = tmp_path / "marks"
    task_id = begin_task(prefork, agent, marks)

    assert text_of(prefork.wait_for_end(agent, task_id)) == OUT_OF_TIME
    with nothing_more_in(marks):
        prefork.require_celery_events(task_id, "failed")
        prefork.require_working()
    assert prefork.log(task_id) == [*WORKED, "FAILED"]


@pytest.mark.parametrize("agent", ["looks", "talks", "draws"])
def test_a_plain_function_can_see_its_cancel_and_canceled_waits_for_it(
    system: SystemUnderTest, tmp_path: Path, agent: str
) -> None:
    done_file = tmp_path / "done"
    task_id = system.send(agent, str(done_file))
    eventually(Path(f"{done_file}.begun").exists, what="the agent's function is being run")

    task = cancel(system, agent, task_id)

    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert done_file.read_text() == "tidied up"
    system.require_working()
    assert f"run {task_id}.1: its agent {IGNORED}" not in system.worker.output()
    log = system.log(task_id)
    assert log.count("CANCELED") == 1
    assert log[-1] == "CANCELED"


def test_a_cancel_that_hangs_leaves_time_for_the_agent_itself(system: SystemUnderTest) -> None:
    task_id = system.send("hangs-in-cancel", "")
    eventually(lambda: system.is_in(task_id, "WORKING"))

    assert cancel(system, "hangs-in-cancel", task_id)["status"]["state"] == "TASK_STATE_CANCELED"
    assert f"run {task_id}.1: its agent {IGNORED}" not in system.worker.output()


def test_on_pools_with_shared_processes_an_agent_is_abandoned_and_logged(
    system: SystemUnderTest, tmp_path: Path
) -> None:
    if system.pool == "prefork":
        return
    marks = tmp_path / "marks"
    task_id = begin_task(system, "deaf-function", marks)

    assert cancel_task(system, "deaf-function", task_id)["status"]["state"] == "TASK_STATE_CANCELED"

    system.worker.wait_for_output(f"run {task_id}.1: its agent {IGNORED} and is abandoned")
    system.require_working()
    assert system.log(task_id) == [*WORKED, "CANCELED"]


def test_a_released_run_is_stopped_by_force_too(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with running_system(tmp_path, "prefork", A2A_LEASE_TTL="2", **SETTINGS) as system:
        task_id = begin_task(system, "lost-once", marks)
        system.fleet.worker()
        system.fleet.watcher()
        with system.pause_consumer():  # the next attempt must not reach a frozen worker
            system.worker.signal_group(signal.SIGSTOP)
            eventually(lambda: system.is_in(task_id, "COMPLETED"), what="the other worker does it")
            system.worker.signal_group(signal.SIGCONT)

        system.worker.wait_for_output(f"{IGNORED} (another worker has its lease): ending its process")
        with nothing_more_in(marks):
            pass
        assert system.log(task_id) == [*WORKED, "WORKING", "artifact", "COMPLETED"]


def test_a_queued_task_that_was_cancelled_never_begins_even_on_a_later_worker(tmp_path: Path, broker: str) -> None:
    marks = tmp_path / "marks"
    with running_fleet(tmp_path, broker, **SETTINGS) as fleet:
        gateway = fleet.gateway()
        task = talk.send(gateway, "deaf-function", str(marks), returnImmediately=True)

        assert talk.state(talk.cancel(gateway, "deaf-function", task)) == "CANCELED"

        worker = fleet.worker(pool="solo")  # executes waiting messages in order
        assert talk.state(talk.send(gateway, "echo", "behind it")) == "COMPLETED"
        name = f"{task['id']}.1"  # the worker may have received the revoke from another worker at startup
        assert f"run {name} dropped" in worker.output() or f"revoked task: a2a.deaf-function[{name}]" in worker.output()
        assert talk.state(talk.read(gateway, "deaf-function", task)) == "CANCELED"
    assert not marks.exists()


def test_a_prefetched_run_that_is_cancelled_is_revoked_in_its_worker(prefork: SystemUnderTest, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with prefork.pause_consumer():
        task_id = prefork.send("deaf-function", str(marks))
        assert cancel(prefork, "deaf-function", task_id)["status"]["state"] == "TASK_STATE_CANCELED"
        prefork.worker.wait_for_output(f"{task_id}.1")  # the worker has received the revoke

    prefork.require_celery_events(task_id, "revoked")
    assert prefork.log(task_id) == ["SUBMITTED", "CANCELED"]
    assert not marks.exists()


def test_what_waits_for_its_client_is_canceled_at_once_and_what_has_ended_can_not_be(prefork: SystemUnderTest) -> None:
    task_id = prefork.send("ask", "")
    prefork.wait_for_end("ask", task_id)

    assert cancel(prefork, "ask", task_id)["status"]["state"] == "TASK_STATE_CANCELED"
    assert prefork.log(task_id) == [*WORKED, "INPUT_REQUIRED", "CANCELED"]
    assert cancel(prefork, "ask", task_id)["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"
    assert prefork.log(task_id) == [*WORKED, "INPUT_REQUIRED", "CANCELED"]


def test_an_agent_that_blocks_the_loop_keeps_its_run_beyond_a_lease(tmp_path: Path) -> None:
    with running_system(tmp_path, "prefork", A2A_LEASE_TTL="2", **SETTINGS) as system:
        system.fleet.watcher()
        task_id = system.send("stuck", "8")

        assert system.wait_for_end("stuck", task_id)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_plain_celery_task_is_stopped_alike(tmp_path: Path, pool: str) -> None:
    settings = SETTINGS | {"app": "tests.support.agents.plain_tasks"}
    with running_system(tmp_path, pool, **settings) as system:
        task_id = system.send("sleeps", data={"seconds": 40})
        eventually(lambda: system.is_in(task_id, "WORKING"))

        assert cancel_task(system, "sleeps", task_id)["status"]["state"] == "TASK_STATE_CANCELED"

        assert IGNORED in system.worker.output()
        assert system.log(task_id) == [*WORKED, "CANCELED"]
        if pool == "prefork":
            system.require_celery_events(task_id, "revoked")
            eventually(lambda: system.celery.AsyncResult(f"{task_id}.1").state == "REVOKED")
