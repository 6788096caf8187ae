"""Celery's own limits, a result backend that is down, a second attempt: all that Celery can't do or say is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_celery.lifecycle.outcomes import AGENT_FAILED, CANCELED_BY_OPERATOR, OUT_OF_TIME, WORKER_LOST
from tests.acceptance.test_endings import NOWHERE, POOLS, WORKED, open_site, text_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("limit", ["TEST_SOFT_TIME_LIMIT", "TEST_TIME_LIMIT"])
def test_celerys_limits_hold_on_every_pool(tmp_path: Path, pool: str, limit: str) -> None:
    with open_site(tmp_path, pool, **{limit: "3"}) as site:
        for agent in ("silent", "patient"):
            task_id = site.send(agent, "60")

            assert text_of(site.ended(agent, task_id)) == OUT_OF_TIME
            site.celery_says(task_id, "failed")
            assert site.log(task_id) == [*WORKED, "FAILED"]
        site.goes_on()
        assert "SIGKILL" not in site.worker.output()


def test_an_agent_that_blocks_the_loop_meets_celerys_hard_limit_once(tmp_path: Path, broker: str) -> None:
    with open_site(tmp_path, "prefork", broker, TEST_TIME_LIMIT="3") as site:
        task_id = site.send("stuck", "60")

        assert text_of(site.ended("stuck", task_id)) == OUT_OF_TIME
        site.celery_says(task_id, "failed", "failed")
        assert site.log(task_id) == [*WORKED, "FAILED"]
        site.goes_on()


@pytest.mark.parametrize("pool", POOLS)
def test_a_result_backend_that_is_down_changes_no_end(tmp_path: Path, pool: str) -> None:
    rows = [("echo", "hi", None), ("fail", "", AGENT_FAILED), ("limited", "", OUT_OF_TIME)]
    if pool == "prefork":
        rows += [("ends", "os._exit", WORKER_LOST), ("ends", "SIGKILL", WORKER_LOST)]
    with open_site(tmp_path, pool, CELERY_RESULT_BACKEND=NOWHERE) as site:
        for agent, message, text in rows:
            assert text_of(site.ended(agent, site.send(agent, message))) == text
        if pool == "prefork":
            task_id = site.send("silent", "60")
            eventually(lambda: site.is_in(task_id, "WORKING"))
            site.celery.control.revoke(f"{task_id}.1", terminate=True)
            assert text_of(site.ended("silent", task_id)) == CANCELED_BY_OPERATOR
        with site.deaf():
            task_id = site.send("echo", "hello")
            site.revoke(task_id)
        assert site.ended("echo", task_id)["status"]["state"] == "TASK_STATE_CANCELED"
        site.goes_on()


def test_an_agent_that_may_run_again_does_so_before_its_lease_is_over(tmp_path: Path) -> None:
    with open_site(tmp_path, "prefork", A2A_LEASE_TTL="600") as site:
        site.fleet.watcher(A2A_LEASE_TTL="2")  # after its start a watcher waits for half of it
        task_id = site.send("phoenix", "hello")

        assert site.ended("phoenix", task_id)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert site.log(task_id) == [*WORKED, "WORKING", "artifact", "COMPLETED"]


def test_an_agent_that_may_run_again_does_not_when_someone_terminates_it(tmp_path: Path) -> None:
    with open_site(tmp_path, "prefork", A2A_LEASE_TTL="600") as site:
        site.fleet.watcher()
        task_id = site.send("steady", "60 60 60")
        eventually(lambda: "artifact" in site.log(task_id), what="it works")

        site.celery.control.revoke(f"{task_id}.1", terminate=True)

        assert text_of(site.ended("steady", task_id)) == CANCELED_BY_OPERATOR
        assert site.log(task_id) == [*WORKED, "artifact", "CANCELED"]
