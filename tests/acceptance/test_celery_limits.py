"""Celery's time limits, an unavailable result backend and further attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_celery.lifecycle.outcomes import AGENT_FAILED, CANCELED_BY_OPERATOR, OUT_OF_TIME, WORKER_LOST
from tests.acceptance.test_endings import NOWHERE, POOLS, WORKED, running_system, text_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

POOLS_WITH_HARD_LIMITS = {"prefork", "gevent"}
"""Pools on which Celery enforces hard limits."""


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("limit", ["TEST_SOFT_TIME_LIMIT", "TEST_TIME_LIMIT"])
def test_celerys_limits_hold_on_every_pool(tmp_path: Path, pool: str, limit: str) -> None:
    # a run has a quarter of a hard limit to stop before Celery stops it
    seconds = "12" if limit == "TEST_TIME_LIMIT" and pool in POOLS_WITH_HARD_LIMITS else "3"
    with running_system(tmp_path, pool, **{limit: seconds}) as system:
        task_ids = {agent: system.send(agent, "60") for agent in ("silent", "patient")}
        for agent, task_id in task_ids.items():
            assert text_of(system.wait_for_end(agent, task_id)) == OUT_OF_TIME
            system.require_celery_events(task_id, "failed")
            assert system.log(task_id) == [*WORKED, "FAILED"]
        system.require_working()
        assert "SIGKILL" not in system.worker.output()


def test_an_agent_that_blocks_the_loop_meets_celerys_hard_limit_once(tmp_path: Path, broker: str) -> None:
    with running_system(tmp_path, "prefork", broker, TEST_TIME_LIMIT="3") as system:
        task_id = system.send("stuck", "60")

        assert text_of(system.wait_for_end("stuck", task_id)) == OUT_OF_TIME
        system.require_celery_events(task_id, "failed", "failed")
        assert system.log(task_id) == [*WORKED, "FAILED"]
        system.require_working()


@pytest.mark.parametrize("pool", POOLS)
def test_a_result_backend_that_is_down_changes_no_end(tmp_path: Path, pool: str) -> None:
    rows = [("echo", "hi", None), ("fail", "", AGENT_FAILED), ("limited", "", OUT_OF_TIME)]
    if pool == "prefork":
        rows += [("ends", "os._exit", WORKER_LOST), ("ends", "SIGKILL", WORKER_LOST)]
    with running_system(tmp_path, pool, CELERY_RESULT_BACKEND=NOWHERE) as system:
        for agent, message, text in rows:
            assert text_of(system.wait_for_end(agent, system.send(agent, message))) == text
        if pool == "prefork":
            task_id = system.send("silent", "60")
            eventually(lambda: system.is_in(task_id, "WORKING"))
            system.celery.control.revoke(f"{task_id}.1", terminate=True)
            assert text_of(system.wait_for_end("silent", task_id)) == CANCELED_BY_OPERATOR
        with system.pause_consumer():
            task_id = system.send("echo", "hello")
            system.revoke(task_id)
        assert system.wait_for_end("echo", task_id)["status"]["state"] == "TASK_STATE_CANCELED"
        system.require_working()


def test_an_agent_that_may_run_again_does_so_before_its_lease_is_over(tmp_path: Path) -> None:
    with running_system(tmp_path, "prefork", A2A_LEASE_TTL="600") as system:
        system.fleet.watcher(A2A_LEASE_TTL="2")  # a new watcher waits for half the TTL before it recovers runs
        task_id = system.send("phoenix", "hello")

        assert system.wait_for_end("phoenix", task_id)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert system.log(task_id) == [*WORKED, "WORKING", "artifact", "COMPLETED"]


def test_an_agent_that_may_run_again_does_not_when_someone_terminates_it(tmp_path: Path) -> None:
    with running_system(tmp_path, "prefork", A2A_LEASE_TTL="600") as system:
        system.fleet.watcher()
        task_id = system.send("steady", "60 60 60")
        eventually(lambda: "artifact" in system.log(task_id), what="the task is WORKING")

        system.celery.control.revoke(f"{task_id}.1", terminate=True)

        assert text_of(system.wait_for_end("steady", task_id)) == CANCELED_BY_OPERATOR
        assert system.log(task_id) == [*WORKED, "artifact", "CANCELED"]
