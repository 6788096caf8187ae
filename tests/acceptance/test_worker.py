"""Runs in a stock Celery worker: their process, shared state and lifecycle."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.clients import talk
from tests.support.clients.talk import state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

APP_WITH_NAMED_AGENTS = """
import os
from celery import Celery
from a2a_celery import A2A

app = Celery("acme")
app.conf.task_default_queue = os.environ["TEST_QUEUE"]
a2a = A2A(app)
a2a.agent("one")("acme_agents:greet")
a2a.agent("two")("acme_agents:greet")
"""


class Site:
    """Gateway with one worker."""

    def __init__(self, fleet: Fleet, gateway: Gateway, worker: Process) -> None:
        self.fleet = fleet
        self.gateway = gateway
        self.worker = worker

    def send(self, agent: str, text: str, **configuration: Any) -> dict[str, Any]:
        """Send a message and return the task."""
        return talk.send(self.gateway, agent, text, **configuration)

    def get(self, agent: str, task_id: str) -> dict[str, Any]:
        return talk.read(self.gateway, agent, {"id": task_id})

    def cancel(self, agent: str, task_id: str) -> dict[str, Any]:
        """Cancel the task, wait until it is terminal, and return it."""
        return talk.cancel_task(self.gateway, agent, {"id": task_id})


@pytest.fixture(scope="module", params=["prefork", "threads"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_fleet(tmp_path_factory.mktemp(request.param), A2A_CANCEL_GRACE="1") as fleet:
        yield Site(fleet, fleet.gateway(), fleet.worker(pool=request.param, concurrency=2))


def test_all_runs_of_a_process_share_one_event_loop(site: Site) -> None:
    with ThreadPoolExecutor(8) as threads:
        tasks = list(threads.map(lambda _: site.send("data", "where?"), range(40)))

    loops = defaultdict(set)
    for task in tasks:
        data = task["artifacts"][0]["parts"][0]["data"]
        loops[data["pid"]].add(data["loop"])
    assert all(len(loop_ids) == 1 for loop_ids in loops.values()), loops
    if site.worker.output().count("prefork"):
        assert site.worker.pid not in loops  # the loops are created in the child processes, after the fork


def test_an_executor_is_built_in_the_process_and_on_the_loop_that_runs_it(site: Site) -> None:
    built_on, runs = (part["text"] for part in site.send("heavy", "")["artifacts"][0]["parts"])

    assert built_on == runs
    assert "a2a-runs" in runs


def test_an_executor_given_by_name_is_imported_in_workers_only(site: Site) -> None:
    site.send("heavy", "")

    assert "heavy imported" in site.worker.output()
    assert "heavy imported" not in site.gateway.output()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_agents_by_name_beside_the_app_module_run_in_a_stock_worker(tmp_path: Path, pool: str) -> None:
    """The ``celery`` script does not add the current folder to Python's path. ``python -m celery`` does."""
    (tmp_path / "acme.py").write_text(APP_WITH_NAMED_AGENTS)
    (tmp_path / "acme_agents.py").write_text("import acme_words\ndef greet(turn):\n    return acme_words.GREETING\n")
    (tmp_path / "acme_words.py").write_text("GREETING = 'hello'\n")
    script = ["env", "-C", str(tmp_path), str(Path(sys.executable).with_name("celery"))]
    with running_fleet(tmp_path, app="acme", PYTHONPATH=str(tmp_path)) as fleet:
        gateway = fleet.gateway()
        fleet.environment_without("PYTHONPATH")

        command = [*script, "-A", "acme", "worker", "-P", pool, "-c", "2", "-l", "INFO"]
        worker = Process("stock worker", command, fleet.environment, tmp_path / "worker.log")
        fleet.processes.append(worker)
        worker.wait_for_output(" ready.")

        for agent in ("one", "two"):
            assert talk.send(gateway, agent)["artifacts"][0]["parts"] == [{"text": "hello"}]


def test_code_that_cannot_be_built_fails_its_tasks_with_a_reference(site: Site) -> None:
    task = site.send("unbuildable", "")

    assert state(task) == "FAILED"
    assert task["status"]["message"]["parts"] == [{"text": "The agent failed."}]
    reference = task["status"]["message"]["metadata"]["reference"]
    assert reference in site.worker.output()
    assert "no licence" in site.worker.output()


def test_an_exception_stays_in_the_workers_log(site: Site) -> None:
    task = site.send("fail", "")

    assert state(task) == "FAILED"
    assert "secret" not in str(task)
    assert task["status"]["message"]["metadata"]["reference"] in site.worker.output()


def test_a_run_that_arrives_twice_runs_once(site: Site) -> None:
    task = site.send("silent", "0.5", returnImmediately=True)
    second_app = Celery(broker=site.fleet.broker_url)
    for _ in range(3):
        second_app.send_task("a2a.silent", (task["id"], 1), task_id=f"{task['id']}.1", queue=site.fleet.queue)

    eventually(lambda: state(site.get("silent", task["id"])) == "COMPLETED", what="the task completes")
    eventually(lambda: site.worker.output().count(f"run {task['id']}.1 dropped") == 3, what="three copies are dropped")
    assert len(site.get("silent", task["id"])["artifacts"]) == 1


def test_sync_agents_do_not_hold_up_the_loop(site: Site) -> None:
    slow = site.send("block", "5", returnImmediately=True)
    eventually(lambda: state(site.get("block", slow["id"])) == "WORKING", what="it blocks its thread")

    assert state(site.send("echo", "quick")) == "COMPLETED"
    assert state(site.get("block", slow["id"])) == "WORKING"
    eventually(lambda: state(site.get("block", slow["id"])) == "COMPLETED", what="the task ends")


def test_yielding_agents_make_one_artifact(site: Site) -> None:
    for agent in ("count", "sync-count"):
        [artifact] = site.send(agent, "300")["artifacts"]
        assert "".join(part["text"] for part in artifact["parts"]) == "".join(f"{n} " for n in range(300))


def test_a_running_agent_is_cancelled_where_it_waits(site: Site) -> None:
    for agent in ("silent", "patient"):
        task = site.send(agent, "60", returnImmediately=True)
        eventually(lambda a=agent, t=task: state(site.get(a, t["id"])) == "WORKING", what="the task is WORKING")

        assert state(site.cancel(agent, task["id"])) == "CANCELED"


def test_an_agent_that_swallows_its_cancellation_is_canceled_all_the_same(site: Site) -> None:
    task = site.send("patient", "stubborn", returnImmediately=True)
    eventually(lambda: state(site.get("patient", task["id"])) == "WORKING", what="the task is WORKING")

    assert state(site.cancel("patient", task["id"])) == "CANCELED"


def test_an_agent_that_cannot_be_reached_is_canceled_after_its_grace(site: Site) -> None:
    task = site.send("block", "90", returnImmediately=True)
    eventually(lambda: state(site.get("block", task["id"])) == "WORKING", what="it blocks its thread")

    assert state(site.cancel("block", task["id"])) == "CANCELED"
