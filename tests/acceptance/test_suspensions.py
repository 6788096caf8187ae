"""Agents that sleep and wait for signals, on real workers and both brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from a2a_celery.lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, WAITS_FOR
from tests.support.clients.bindings import rest
from tests.support.processes.system_under_test import SystemUnderTest, running_system
from tests.support.receivers.scrapes import scrape
from tests.support.waiting import eventually

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
ENV = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3", "app": "tests.support.agents.suspended_agents"}


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    """System with a watcher, and one worker with two slots."""
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, **ENV) as system:
        system.fleet.watcher().wait_for_output("watcher started")
        yield system


def get(system: SystemUnderTest, agent: str, task_id: str) -> dict[str, Any]:
    """Return the current task from the gateway."""
    task: dict[str, Any] = rest(system.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
    return task


def wait_until_suspended(system: SystemUnderTest, agent: str, task_id: str, key: str = CONTINUES_AT) -> dict[str, Any]:
    """Wait until the task's metadata shows that its run is suspended, and return the task."""

    def suspended_task() -> dict[str, Any] | None:
        task = get(system, agent, task_id)
        return task if NAMESPACE + key in task.get("metadata", {}) else None

    task = eventually(suspended_task, what="a run is suspended")
    assert task is not None
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    return task


def text(task: dict[str, Any]) -> str:
    """Return the text of the artifacts of a completed task."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def send_signal(system: SystemUnderTest, task_id: str, name: str, payload: Any, agent: str = "approval") -> bool:
    """Send a signal over HTTP. Return True if a run waited for the signal."""
    reply = rest(system.gateway, "POST", f"/tasks/{task_id}:signal", {"name": name, "payload": payload}, agent=agent)
    assert reply.status_code == 202, reply.text
    return bool(reply.json()["resumed"])


@pytest.mark.each_kind
@pytest.mark.parametrize("agent", ["sleeper", "blocking-sleeper"])
def test_sleeping_tasks_hold_no_slot_and_do_not_continue_early(system: SystemUnderTest, agent: str) -> None:
    task_ids = [system.send(agent, "6") for _ in range(6)]
    for task_id in task_ids:
        wait_until_suspended(system, agent, task_id)
    system.require_working()

    delays = [float(text(system.wait_for_end(agent, task_id))) for task_id in task_ids]

    assert min(delays) >= -0.01
    assert system.log(task_ids[0]) == ["SUBMITTED", "WORKING", "WORKING", "WORKING", "artifact", "COMPLETED"]


@pytest.mark.each_kind
def test_signals_from_each_sender_continue_a_task(system: SystemUnderTest) -> None:
    task_id = system.send("approval", "600")
    assert wait_until_suspended(system, "approval", task_id, WAITS_FOR)["metadata"][NAMESPACE + WAITS_FOR] == "approval"

    assert send_signal(system, task_id, "approval", {"by": "Ann"})

    command = system.fleet.command("a2a", "signal", task_id, "approval", json.dumps({"by": "Bob"}))
    assert command.returncode == 0, command.stderr
    assert text(system.wait_for_end("approval", task_id)) == "approved by Ann and Bob"


@pytest.mark.each_kind
def test_a_suspended_task_is_canceled_at_once(system: SystemUnderTest) -> None:
    task_ids = [system.send("approval", "600"), system.send("sleeper", "3600")]
    agents = ["approval", "sleeper"]
    for agent, task_id in zip(agents, task_ids, strict=True):
        wait_until_suspended(system, agent, task_id)

    for agent, task_id in zip(agents, task_ids, strict=True):
        reply = rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", {}, agent=agent)
        assert reply.json()["status"]["state"] == "TASK_STATE_CANCELED"


def test_a_celery_task_sends_signals_before_the_wait(system: SystemUnderTest) -> None:
    with system.pause_consumer():
        task_id = system.send("approval", "600")
        for name in ("Ann", "Bob"):
            command = system.fleet.command("a2a", "signal", task_id, "approval", json.dumps({"by": name}))
            assert "stored until" in command.stdout

    assert text(system.wait_for_end("approval", task_id)) == "approved by Ann and Bob"
    task_id = system.send("approval", "600")
    for name in ("Cleo", "Dan"):
        wait_until_suspended(system, "approval", task_id, WAITS_FOR)
        count_before = len(system.log(task_id))
        system.celery.send_task("tests.approve", (task_id, {"by": name}), queue=system.fleet.queue)
        eventually(lambda: len(system.log(task_id)) >= count_before + 2, what="the run continues")  # noqa: B023

    assert text(system.wait_for_end("approval", task_id)) == "approved by Cleo and Dan"


def test_a_wait_without_a_signal_times_out(system: SystemUnderTest) -> None:
    task_id = system.send("approval", "1")

    assert text(system.wait_for_end("approval", task_id)) == "too late"


def test_time_asleep_counts_towards_no_limit(system: SystemUnderTest) -> None:
    task_id = system.send("idle-sleeper")

    assert text(system.wait_for_end("idle-sleeper", task_id)) == "awake"


def test_a_worker_that_is_killed_in_a_short_sleep_loses_only_the_attempt(system: SystemUnderTest) -> None:
    task_id = system.send("killed")
    if system.pool != "prefork":
        eventually(lambda: not system.worker.is_running, what="the worker is dead")
        system.worker = system.fleet.worker(pool=system.pool, concurrency=2)

    assert text(system.wait_for_end("killed", task_id)) == "attempt 2"


def test_a_suspended_run_blocks_its_context(system: SystemUnderTest) -> None:
    first = system.send("serial-sleeper", "6")
    context = wait_until_suspended(system, "serial-sleeper", first)["contextId"]
    body = {
        "message": {"messageId": "second", "role": "ROLE_USER", "contextId": context, "parts": [{"text": "0"}]},
        "configuration": {"returnImmediately": True},
    }
    second = system.send_body("serial-sleeper", body)

    assert text(system.wait_for_end("serial-sleeper", second)) == "awake"
    assert text(get(system, "serial-sleeper", first)) == "awake"


def test_operators_see_suspended_runs(system: SystemUnderTest) -> None:
    task_id = system.send("sleeper", "3600")
    wait_until_suspended(system, "sleeper", task_id)

    suspended_count = scrape(system.gateway.url).get("a2a_runs", phase="suspended")
    list_output = system.fleet.command("a2a", "list", "--all", "--json").stdout
    get_output = system.fleet.command("a2a", "get", task_id, "--store").stdout
    result = system.fleet.command("a2a", "cancel", task_id, "--store")

    assert suspended_count >= 1
    [row] = [json.loads(line) for line in list_output.splitlines() if task_id in line]
    assert row["state"] == "WORKING"
    assert "continues at 20" in get_output
    assert result.returncode == 0, result.stderr
