"""Runs in Flower, with ids, names, final states and times, but without the content of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR
from tests.support import ROOT
from tests.support.clients.bindings import V1
from tests.support.processes.fleet import free_port
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import LIMIT, eventually

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
SECRET = "7b1fe0 what a client said"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8").partition("## Flower")[2].partition("\n## ")[0]


@dataclass
class FlowerSystem:
    """System under test, and the Flower server that observes it."""

    system: SystemUnderTest
    url: str

    def run(self, task_id: str, *states: str, number: int = 1) -> dict[str, Any]:
        """Wait until Flower's API shows a run in one of `states`, and return the run."""
        return self._wait_for(f"{task_id}.{number}", lambda run: run.get("state") in states, f"Flower says {states}")

    def wait_for_retry(self, task_id: str) -> dict[str, Any]:
        """Wait until Flower's API shows that the first run was retried and its next message received. Return the
        run."""
        return self._wait_for(
            f"{task_id}.1", lambda run: run.get("retried") and run["retries"], "Flower knows the retry"
        )

    def _wait_for(self, celery_id: str, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        def matching_info() -> dict[str, Any] | None:
            answer = httpx.get(f"{self.url}/api/task/info/{celery_id}", timeout=LIMIT)
            run: dict[str, Any] = answer.json() if answer.is_success else {}
            return run if condition(run) else None

        task_info = eventually(matching_info, what=what)
        assert task_info is not None
        return task_info

    def text(self, path: str, **query: str) -> str:
        """Return the body of a page or of an API response of Flower."""
        answer = httpx.get(f"{self.url}{path}", params=query, timeout=LIMIT)
        assert answer.status_code == 200, answer.text
        return answer.text


def command() -> list[str]:
    """Return the command of docs/deployment.md, without ``celery -A acme``."""
    [line] = re.findall(r"^celery -A acme flower.*$", (ROOT / "docs" / "deployment.md").read_text(), re.MULTILINE)
    return line.partition("  #")[0].split()[3:]


@contextmanager
def flower(system: SystemUnderTest) -> Iterator[FlowerSystem]:
    """Run the documented command on a free port."""
    url = f"http://127.0.0.1:{free_port()}"
    port = f"--port={url.rpartition(':')[2]}"
    system.fleet.start("flower", *command(), port, FLOWER_UNAUTHENTICATED_API="true")
    eventually(lambda: knows_the_worker(url), what="Flower knows the worker")
    yield FlowerSystem(system, url)


@pytest.fixture(scope="module")
def flower_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSystem]:
    with running_system(tmp_path_factory.mktemp("flower"), "prefork", A2A_CANCEL_GRACE="1") as system:
        system.fleet.watcher()
        with flower(system) as flower_system:
            yield flower_system


@pytest.fixture(scope="module", params=POOLS)
def everywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[FlowerSystem]:
    """Flower and a system under test, for each pool and broker."""
    folder, quick = tmp_path_factory.mktemp(request.param), {"A2A_CANCEL_GRACE": "1", "TEST_ALONE": "1"}
    with running_system(folder, request.param, broker, **quick) as system:
        system.fleet.watcher().wait_for_output("listening for revokes")
        with flower(system) as flower_system:
            yield flower_system


def knows_the_worker(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/api/workers?refresh=1", timeout=LIMIT).json())
    except (httpx.HTTPError, ValueError):
        return False


ENDS = [
    # agent, message, final state of the A2A task, state of the run in Flower
    ("echo", SECRET, "COMPLETED", "SUCCESS"),
    ("fail", SECRET, "FAILED", "FAILURE"),
    ("refuse", SECRET, "REJECTED", "REFUSED"),
    ("ask", SECRET, "INPUT_REQUIRED", "INPUT_REQUIRED"),
    ("limited", SECRET, "FAILED", "FAILURE"),
    ("ends", "SIGKILL", "FAILED", "FAILURE"),
    ("ghost", SECRET, "REJECTED", "FAILURE"),
]


@pytest.mark.parametrize(("agent", "message", "state", "flower"), ENDS, ids=[row[0] for row in ENDS])
def test_a_run_is_found_by_its_task_s_id_with_its_end(
    flower_system: FlowerSystem, agent: str, message: str, state: str, flower: str
) -> None:
    task_id = flower_system.system.send(agent, message)
    task = flower_system.system.wait_for_end(agent, task_id)
    assert task["status"]["state"] == f"TASK_STATE_{state}"

    run = flower_system.run(task_id, flower)

    if agent != "ghost":  # for an unknown task, a worker reports nothing but the failure
        assert (run["name"], run["retries"]) == (f"a2a.{agent}", 0)
        assert (run["args"], run["kwargs"]) == (f"('{task_id}', 1)", "{}")
    if flower != "FAILURE":
        assert 0 < run["runtime"] < LIMIT
    if agent == "fail":
        reference = task["status"]["message"]["metadata"]["reference"]
        assert run["exception"] == f"RunFailed('The agent failed. [reference {reference}]')"
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {state} |")]
    assert flower in row


@pytest.mark.each_kind
def test_a_run_is_in_retry_while_its_retry_waits(everywhere: FlowerSystem) -> None:
    system = everywhere.system
    task_id = system.send("unlucky", SECRET)

    run = everywhere.run(task_id, "RETRY")

    assert (run["name"], run["exception"]) == ("a2a.unlucky", "RunRetried('LookupError')")
    assert SECRET not in str(run)
    cancel(system, "unlucky", task_id)
    system.require_working()


@pytest.mark.each_kind
def test_a_retry_that_a_worker_holds_is_received(everywhere: FlowerSystem) -> None:
    system = everywhere.system
    task_id = system.send("unlucky-soon", SECRET)

    run = everywhere.wait_for_retry(task_id)

    assert (run["name"], run["exception"]) == ("a2a.unlucky-soon", "RunRetried('LookupError')")
    assert run["state"] in ("RETRY", "RECEIVED"), "a busy worker receives the message before or after the event"
    cancel(system, "unlucky-soon", task_id)


@pytest.mark.each_kind
def test_a_run_that_is_rejected_is_refused(everywhere: FlowerSystem) -> None:
    task_id = everywhere.system.send("refuse", SECRET)

    run = everywhere.run(task_id, "REFUSED")

    assert (run["name"], run["retries"]) == ("a2a.refuse", 0)
    assert SECRET not in str(run)


@pytest.mark.each_kind
def test_a_run_that_is_canceled_is_revoked(everywhere: FlowerSystem) -> None:
    system = everywhere.system
    task_id = system.send("patient", SECRET)
    eventually(lambda: system.is_in(task_id, "WORKING"))
    cancel(system, "patient", task_id)

    run = everywhere.run(task_id, "REVOKED")

    assert run["revoked"] > run["started"]
    assert run["runtime"] > 0


def cancel(system: SystemUnderTest, agent: str, task_id: str) -> None:
    """Cancel a task as its client."""
    httpx.post(f"{system.gateway.url}/agents/{agent}/tasks/{task_id}:cancel", headers=V1, timeout=LIMIT)
    assert system.wait_for_end(agent, task_id)["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.each_kind
@pytest.mark.parametrize("terminate", ["false", "true"])
def test_its_buttons_cancel_a_task(everywhere: FlowerSystem, tmp_path: Path, terminate: str) -> None:
    system, gate = everywhere.system, tmp_path / "gate"
    slots = 1 if system.pool == "solo" else 2
    occupying_tasks = [system.send("until", str(gate)) for _ in range(slots)]
    eventually(lambda: all(system.is_in(task_id, "WORKING") for task_id in occupying_tasks))
    task_id = occupying_tasks[0] if terminate == "true" else system.send("echo", SECRET)

    answer = httpx.post(f"{everywhere.url}/api/task/revoke/{task_id}.1", params={"terminate": terminate}, timeout=LIMIT)

    assert answer.status_code == 200, answer.text
    task = system.wait_for_end("until" if terminate == "true" else "echo", task_id)
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert text_of(task) == CANCELED_BY_OPERATOR
    gate.touch()
    # a worker of the solo pool may read the message before the broadcast
    everywhere.run(task_id, "REVOKED", *(["DROPPED"] if system.pool == "solo" else []))
    system.require_working()


def test_a_copy_that_is_dropped_changes_nothing(flower_system: FlowerSystem) -> None:
    system = flower_system.system
    task_id = system.send("pace", "5 0.2")
    run_before = flower_system.run(task_id, "SUCCESS")

    system.celery.send_task("a2a.pace", (task_id, 1), task_id=f"{task_id}.1", queue=system.fleet.queue)

    system.require_celery_events(task_id, "succeeded", "dropped")
    system.require_working()
    run_after = flower_system.run(task_id, "SUCCESS")
    assert run_after["runtime"] == run_before["runtime"] > 0.9


def test_each_attempt_is_listed(flower_system: FlowerSystem) -> None:
    task_id = flower_system.system.send("phoenix")
    flower_system.system.wait_for_end("phoenix", task_id)

    lost_run, risen = flower_system.run(task_id, "FAILURE"), flower_system.run(task_id, "SUCCESS", number=2)

    assert "WorkerLostError" in lost_run["exception"]
    assert risen["args"] == f"('{task_id}', 2)"


@pytest.mark.each_kind
def test_flower_shows_the_end_of_a_run_that_was_lost_with_its_worker(tmp_path: Path, broker: str) -> None:
    quick = {"A2A_LEASE_TTL": "2", "A2A_CANCEL_GRACE": "0.5"}
    with (
        running_system(tmp_path, "prefork", broker, TEST_ALONE="1", **quick) as system,
        flower(system) as flower_system,
    ):
        lost_task, canceled_task = system.send("patient", SECRET), system.send("patient", SECRET)
        workers = {flower_system.run(task_id, "STARTED")["worker"] for task_id in (lost_task, canceled_task)}
        eventually(lambda: system.is_in(lost_task, "WORKING") and system.is_in(canceled_task, "WORKING"))

        system.worker.kill()
        httpx.post(f"{system.gateway.url}/agents/patient/tasks/{canceled_task}:cancel", headers=V1, timeout=LIMIT)
        system.fleet.watcher()

        assert system.wait_for_end("patient", lost_task)["status"]["state"] == "TASK_STATE_FAILED"
        run = flower_system.run(lost_task, "FAILURE")
        assert (run["name"], run["exception"]) == ("a2a.patient", "WorkerLostError('The worker was lost.')")
        assert flower_system.run(canceled_task, "REVOKED")["worker"] == run["worker"]
        assert {run["worker"]} == workers == set(httpx.get(f"{flower_system.url}/api/workers", timeout=LIMIT).json())


def test_its_pages_find_a_task_without_showing_messages(flower_system: FlowerSystem) -> None:
    task_id = flower_system.system.send("echo", SECRET)
    flower_system.run(task_id, "SUCCESS")
    flower_system.run(flower_system.system.send("ask", SECRET), "INPUT_REQUIRED")

    columns = {"columns[0][data]": "name", "order[0][column]": "0", "order[0][dir]": "asc"}
    table = json.loads(
        flower_system.text(
            "/tasks/datatable", draw="1", start="0", length="10", **{"search[value]": task_id}, **columns
        )
    )
    assert [row["uuid"] for row in table["data"]] == [f"{task_id}.1"]
    page = flower_system.text(f"/task/{task_id}.1")
    assert "a2a.echo" in page
    assert "SUCCESS" in page
    pages = [flower_system.text(path) for path in ("/api/tasks", "/tasks", "/workers", "/metrics")]
    assert SECRET not in "".join([*pages, page, json.dumps(table)])
    assert 'type="task-input_required"' in pages[-1]


def test_a_plain_task_that_is_retried_shows_it(tmp_path: Path) -> None:
    with (
        running_system(tmp_path, "prefork", app="tests.support.agents.plain_tasks") as system,
        flower(system) as flower_system,
    ):
        task_id = system.send("flaky", data={})
        system.wait_for_end("flaky", task_id)

        # Celery sends the event of a retry after the message, so Flower may receive this event after that of the end.
        run = flower_system.wait_for_retry(task_id)

    assert (run["name"], run["retries"]) == ("tests.support.agents.plain_tasks.flaky", 1)
