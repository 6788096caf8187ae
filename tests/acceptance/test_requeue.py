"""``a2a requeue`` and ``a2a list --stuck`` on real fleets. A lost task runs again on another worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.operator.selection import run_on_service
from a2a_celery.features.dead_letters.requeue import RequeuedTask, requeue
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.operations.service import TaskService
from tests.support.agents import basic as agents
from tests.support.clients.talk import cancel, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import eventually

LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
ID = r"[0-9a-f-]{36}"

pytestmark = pytest.mark.each_kind


@pytest.fixture
def lease_fleet(tmp_path: Path, broker: str) -> Iterator[Fleet]:
    """Fleet with short leases, on each broker."""
    with running_fleet(tmp_path, broker, **LEASE) as fleet:
        yield fleet


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Fleet]:
    """Fleet with short leases, on Redis."""
    with running_fleet(tmp_path, **LEASE) as fleet:
        yield fleet


def operator_app(fleet: Fleet, **conf: str) -> A2A:
    """Return a Celery app with the fleet's settings, for the operator's commands. `conf` overrides settings."""
    app = Celery("tests", broker=fleet.broker_url, set_as_current=False)
    app.conf.update({"task_default_queue": fleet.queue, "a2a_store_url": fleet.redis.store_url} | conf)
    fleet_agents = A2A(app)
    fleet_agents.agents.update(agents.a2a.agents)
    return fleet_agents


def a2a(fleet: Fleet, *arguments: str, code: int = 0, **conf: str) -> Result:
    """Run ``celery -A … a2a <arguments>`` in this process, because that is fast, and require the exit code."""
    app = operator_app(fleet, **conf).celery
    result = CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=app))
    assert result.exit_code == code, result.output
    return result


def json_lines(fleet: Fleet, *arguments: str, **conf: str) -> list[dict[str, Any]]:
    """Return the JSON output of a command."""
    return [json.loads(line) for line in a2a(fleet, *arguments, "--json", **conf).stdout.splitlines()]


def resubmit(fleet: Fleet, task_ids: list[str]) -> list[RequeuedTask]:
    """Resubmit the dead letters of the tasks and return the results."""

    async def requeue_all(service: TaskService) -> list[RequeuedTask]:
        answers = [await requeue(service, task_id) for task_id in task_ids]
        return [answer for answer in answers if isinstance(answer, RequeuedTask)]

    return run_on_service(operator_app(fleet), requeue_all)


def until(gateway: Gateway, agent: str, task: dict[str, Any], expected_state: str) -> dict[str, Any]:
    """Wait until the task is in the state `expected_state`, and return the task."""
    eventually(lambda: state(read(gateway, agent, task)) == expected_state, what=f"{agent} is {expected_state}")
    return read(gateway, agent, task)


def begin_task(gateway: Gateway, agent: str, text: str = "") -> dict[str, Any]:
    """Send a message, wait until a worker runs the task, and return the task."""
    task = send(gateway, agent, text, returnImmediately=True)
    return until(gateway, agent, task, "WORKING")


def test_a_requeued_lost_task_runs_on_another_worker(lease_fleet: Fleet) -> None:
    gateway, doomed_worker = lease_fleet.gateway(), lease_fleet.worker(concurrency=6)
    dead = [begin_task(gateway, "second-time") for _ in range(5)]
    other = begin_task(gateway, "patient")
    doomed_worker.kill()
    lease_fleet.watcher()
    dead = [until(gateway, "second-time", task, "FAILED") for task in dead]
    until(gateway, "patient", other, "FAILED")
    heading, *lines, hint = a2a(lease_fleet, "requeue", "--agent", "second-time").stdout.splitlines()
    assert heading.split() == ["TASK", "AGENT", "ATTEMPTS", "FAILED", "(UTC)", "CONTEXT"]
    row = next(line for line in lines if line.startswith(dead[0]["id"]))
    assert re.fullmatch(rf"\S+  second-time +1 of 1 +\S+ \S+ +{dead[0]['contextId']}", row)
    assert "a2a requeue TASK" in hint
    shown = a2a(lease_fleet, "get", dead[0]["id"], "--agent", "second-time", "--url", gateway.url).stdout.splitlines()
    assert shown[2:] == [
        "FAILED: The worker was lost.",
        "a2a requeue lists the tasks of lost workers that can run again",
    ]
    lease_fleet.worker(concurrency=6)

    # the first, with the command in a separate process
    result = lease_fleet.command("a2a", "requeue", dead[0]["id"])
    assert (result.returncode, result.stderr) == (0, "")
    [new_id] = re.findall(rf"^{dead[0]['id']} → ({ID})$", result.stdout.strip())
    new = until(gateway, "second-time", {"id": new_id}, "COMPLETED")
    assert new["artifacts"][0]["parts"] == [{"text": f"after {dead[0]['id']}"}]
    assert new["contextId"] == dead[0]["contextId"]
    assert new["metadata"] == own_metadata({"requeuedFrom": dead[0]["id"]})
    assert new["history"][0]["parts"] == dead[0]["history"][0]["parts"]
    assert new["history"][0]["referenceTaskIds"] == [dead[0]["id"]]
    assert read(gateway, "second-time", dead[0]) == dead[0]

    # the second, without a broker, so that a watcher publishes it
    [late_result] = json_lines(lease_fleet, "requeue", dead[1]["id"], broker_url="amqp://127.0.0.1:1//")
    assert late_result["published"] is False
    until(gateway, "second-time", {"id": late_result["task"]}, "COMPLETED")

    # the rest, by two operators at the same time
    remaining_ids = [task["id"] for task in dead[2:]]
    with ThreadPoolExecutor(2) as operators:
        results = [
            item for both in operators.map(lambda _: resubmit(lease_fleet, remaining_ids), range(2)) for item in both
        ]
    became = {item.dead: item.task_id for item in results if item.is_published}
    assert set(became) == set(remaining_ids)
    assert {item.dead: item.task_id for item in results if item.was_requeued_before} == became
    for task_id in became.values():
        until(gateway, "second-time", {"id": task_id}, "COMPLETED")
    assert json_lines(lease_fleet, "requeue", dead[0]["id"]) == [
        {"task": new_id, "requeuedFrom": dead[0]["id"], "before": True}
    ]
    [dead_letter] = json_lines(lease_fleet, "requeue")
    assert dead_letter["task"] == other["id"]
    [last] = json_lines(lease_fleet, "requeue", "--all")
    assert last["requeuedFrom"] == other["id"]
    until(gateway, "patient", {"id": last["task"]}, "WORKING")


def test_a_task_that_kills_workers_is_a_dead_letter_and_others_are_refused(quick: Fleet) -> None:
    gateway = quick.gateway()
    quick.watcher()
    assert a2a(quick, "requeue", "--all").stdout == "no dead letters\n"
    poison = send(gateway, "poison", "", returnImmediately=True)
    for _ in range(2):
        victim = quick.worker(pool="solo")
        eventually(lambda v=victim: not v.is_running, what="the worker process exits")
    until(gateway, "poison", poison, "FAILED")
    [dead_letter] = json_lines(quick, "requeue")
    assert (dead_letter["task"], dead_letter["attempts"], dead_letter["maxAttempts"]) == (poison["id"], 2, 2)

    quick.worker(pool="threads")
    failed_task, completed_task, works = (
        send(gateway, "fail", "x"),
        send(gateway, "echo", "x"),
        begin_task(gateway, "silent", "600"),
    )

    for task_id, reason in {
        failed_task["id"]: "is FAILED: only a task that FAILED because its worker was lost or its steps changed",
        completed_task["id"]: "is COMPLETED: only a task that FAILED",
        works["id"]: "has not ended (WORKING)",
        "nobody": "no task nobody",
    }.items():
        output = a2a(quick, "requeue", task_id, code=1)
        assert output.stderr.startswith("Error: ")
        assert reason in output.stderr
        assert output.stdout == ""
    assert "not both" in a2a(quick, "requeue", "--all", "nobody", code=2).stderr
    assert "no agent 'nobody'; this app has echo," in a2a(quick, "requeue", "--agent", "nobody", code=1).stderr
    unreachable = a2a(quick, "requeue", code=1, a2a_store_url="redis://127.0.0.1:1/0").stderr
    assert "A2A_STORE_URL" in unreachable
    assert [dead_letter["task"] for dead_letter in json_lines(quick, "requeue")] == [poison["id"]]


def test_stuck_tasks_are_listed_with_what_they_wait_for(quick: Fleet) -> None:
    def whys(older_than: str = "1", *more: str) -> dict[str, str]:
        return {
            row["task"]: row["why"] for row in json_lines(quick, "list", "--stuck", "--older-than", older_than, *more)
        }

    gateway, worker = quick.gateway(), quick.worker(pool="threads", A2A_LEASE_TTL="600")
    hangs = begin_task(gateway, "silent", "600")
    assert a2a(quick, "list", "--stuck").stdout.startswith("nothing is stuck")
    worker.kill()
    cancel(gateway, "silent", hangs)
    assert whys("0") == {hangs["id"]: "canceling"}
    doomed_worker = quick.worker(pool="threads")
    pauses, lapses = send(gateway, "ask", "hi"), begin_task(gateway, "silent", "600")
    doomed_worker.kill()
    waits = send(gateway, "echo", "x", returnImmediately=True)
    phases = {hangs["id"]: "canceling", pauses["id"]: "paused", waits["id"]: "unclaimed"}
    eventually(lambda: whys() == phases | {lapses["id"]: "lapsed"}, what="each is listed")

    lines = a2a(quick, "list", "--stuck", "--older-than", "1").stdout.splitlines()
    assert lines[0].split() == ["TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY"]
    assert any(re.fullmatch(rf"{waits['id']}  echo +1 +\S+ s +- +no worker began it.*", line) for line in lines)
    assert any(line.startswith("its worker is lost: no watcher recovers it") for line in lines)
    assert whys("1", "--agent", "ask") == {pauses["id"]: "paused"}
    assert len(whys("1", "--limit", "2")) == 2

    quick.watcher()
    eventually(lambda: whys() == phases, what="a watcher updates the reasons")
    assert quick.command("purge", "-f", "-Q", quick.queue).returncode == 0, "else its queue still has the message"
    eventually(
        lambda: [row for row in json_lines(quick, "list", "--stuck", "--older-than", "1") if row["publishedAgain"]],
        what="it is published again",
    )
    assert "published again" in a2a(quick, "list", "--stuck", "--older-than", "1", "--agent", "echo").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--older-than", "5"), "--older-than needs --stuck"),
        (("--stuck", "--url", "http://x"), "leave out --url"),
        (("--stuck", "-H", "a: b"), "leave out --header"),
        (("--stuck", "--state", "working"), "leave out --state"),
        (("--stuck", "--older-than", "-1"), "--older-than"),
    ],
)
def test_wrong_usage_of_list_is_an_error_with_a_hint(arguments: tuple[str, ...], error: str) -> None:
    result = CliRunner().invoke(commands, ["list", *arguments], obj=SimpleNamespace(app=agents.app))

    assert result.exit_code == 2
    assert error in result.stderr
