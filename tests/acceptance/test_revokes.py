"""Revocation by an operator. Celery's ``control.revoke`` cancels a task on every pool and broker.

In this module, a watcher listens for revokes. test_endings.py tests revocation without a watcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.store import Keys
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    with running_system(tmp_path_factory.mktemp(request.param), request.param, broker, concurrency=1) as system:
        system.fleet.watcher().wait_for_output("listening for revokes")
        yield system


def require_canceled_by_operator(task: dict[str, Any], *commands: str) -> None:
    """Require that one of an operator's `commands` canceled the task, and that the status message names the command."""
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert text_of(task) == CANCELED_BY_OPERATOR
    assert task["status"]["message"]["metadata"] in [own_metadata({"command": command}) for command in commands]


def open_gate(system: SystemUnderTest, gate: Path, task_id: str) -> None:
    """Let the run of "until" that occupies the worker finish, and require that the worker executes tasks again."""
    gate.touch()
    system.wait_for_end("until", task_id)
    system.require_working()


@pytest.mark.parametrize("terminate", [False, True], ids=["revoke", "terminate"])
def test_a_queued_run_is_canceled_while_the_slot_is_occupied(
    system: SystemUnderTest, tmp_path: Path, terminate: bool
) -> None:
    gate = tmp_path / "gate"
    running_task = system.send("until", str(gate))
    eventually(lambda: system.is_in(running_task, "WORKING"))
    queued_task = system.send("echo", "hello")  # not earlier, because a broker may deliver messages out of order

    system.celery.control.revoke(f"{queued_task}.1", terminate=terminate)

    # a worker that receives the message after the broadcast knows only that the run was revoked
    require_canceled_by_operator(
        system.wait_for_end("echo", queued_task), "revoke", *(["terminate"] if terminate else [])
    )
    assert system.log(queued_task) == ["SUBMITTED", "CANCELED"]
    assert system.is_in(running_task, "WORKING")
    open_gate(system, gate, running_task)
    eventually(lambda: system.events.ends_of(f"{queued_task}.1"))
    # a worker of the solo pool may read the message before the broadcast
    assert system.events.ends_of(f"{queued_task}.1") in (
        [["revoked"], ["dropped"]] if system.pool == "solo" else [["revoked"]]
    )


def test_a_running_run_goes_on_when_it_is_revoked_without_terminate(system: SystemUnderTest, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running_task = system.send("until", str(gate))
    eventually(lambda: system.is_in(running_task, "WORKING"))
    queued_task = system.send("echo", "hello")  # not earlier, because a broker may deliver messages out of order

    system.celery.control.revoke([f"{running_task}.1", f"{queued_task}.1", "of-another-kind"])
    system.wait_for_end("echo", queued_task)
    open_gate(system, gate, running_task)

    assert system.log(running_task) == ["SUBMITTED", "WORKING", "artifact", "COMPLETED"]


@pytest.mark.parametrize("agent", ["patient", "steady"], ids=["at most once", "may be tried again"])
def test_a_running_run_is_canceled_when_it_is_terminated(system: SystemUnderTest, agent: str) -> None:
    task_id = system.send(agent, "60 60 60")
    eventually(lambda: "artifact" in system.log(task_id) or (agent == "patient" and system.is_in(task_id, "WORKING")))

    system.celery.control.terminate(f"{task_id}.1")

    require_canceled_by_operator(system.wait_for_end(agent, task_id), "terminate")
    assert [kind for kind in system.log(task_id) if kind != "artifact"] == ["SUBMITTED", "WORKING", "CANCELED"]
    assert system.store.redis.hget(Keys("a2a").task(task_id).record, "run") == b"1"
    system.require_working()
    system.require_celery_events(task_id, "revoked")
