"""Prefork children that are spawned instead of forked run agents and exposed tasks like forked children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.clients.talk import cancel_task, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import eventually

APP = "tests.support.agents.spawning_agents"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    folder = tmp_path_factory.mktemp("spawned")
    with running_fleet(
        folder, app="tests.support.agents.plain_tasks", A2A_CANCEL_GRACE="1", A2A_LOG_FORMAT="json"
    ) as fleet:
        fleet.worker(pool="spawn")
        yield fleet, fleet.gateway()


def text_of(task: dict[str, Any]) -> str:
    return str(task["artifacts"][0]["parts"][0]["text"])


def test_the_children_are_spawned_and_run_an_agent(site: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = site

    task = send(gateway, "data", "{}")

    child = psutil.Process(int(task["artifacts"][0]["parts"][0]["data"]["pid"]))
    assert child.ppid() == fleet.processes[0].pid
    assert "billiard.spawn" in " ".join(child.cmdline())
    (line,) = (line for line in fleet.processes[0].output().splitlines() if "of data begins" in line)
    assert line.startswith("{"), "a child has the log format of the settings"


@pytest.mark.parametrize(("agent", "text"), [("echo", "hello"), ("sync-echo", "hello"), ("full", "hello!")])
def test_an_agent_completes(site: tuple[Fleet, Gateway], agent: str, text: str) -> None:
    task = send(site[1], agent, "hello")

    assert (state(task), text_of(task)) == ("COMPLETED", text)


def test_an_exposed_task_is_claimed_and_has_a_turn(site: tuple[Fleet, Gateway]) -> None:
    task = send(site[1], "says", data={})

    assert (state(task), text_of(task)) == ("COMPLETED", "extra")


@pytest.mark.parametrize("agent", ["sync-interview", "confirms"])
def test_questions_are_answered(site: tuple[Fleet, Gateway], agent: str) -> None:
    task = send(site[1], agent, "Rome")

    for answer in ("one", "two"):
        assert state(task) == "INPUT_REQUIRED"
        task = send(site[1], agent, answer, task_id=task["id"])

    assert state(task) == "COMPLETED"


@pytest.mark.parametrize(
    ("agent", "content"),
    [("silent", {}), ("patient", {}), ("block", {"text": "90"}), ("sleeps", {"data": {}})],
)
def test_a_run_is_cancelled(site: tuple[Fleet, Gateway], agent: str, content: dict[str, Any]) -> None:
    task = send(site[1], agent, **content, returnImmediately=True)
    eventually(lambda: state(read(site[1], agent, task)) == "WORKING", what=f"{agent} works")

    assert state(cancel_task(site[1], agent, task)) == "CANCELED"


@pytest.mark.parametrize("agent", ["soft", "hard"])
def test_a_time_limit_ends_the_run(site: tuple[Fleet, Gateway], agent: str) -> None:
    assert state(send(site[1], agent, data={})) == "FAILED"


def test_the_run_of_a_killed_child_fails_and_the_next_is_served(site: tuple[Fleet, Gateway]) -> None:
    assert state(send(site[1], "raises", "SIGKILL")) == "FAILED"
    assert state(send(site[1], "echo", "hello")) == "COMPLETED"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_method_that_billiard_selects_by_default_works(tmp_path: Path, method: str) -> None:
    with running_fleet(tmp_path, app=APP, TEST_START_METHOD=method) as fleet:
        fleet.worker()
        gateway = fleet.gateway()

        assert text_of(send(gateway, "who")) == method
        claimed = send(gateway, "claimed", data={})
        assert text_of(claimed) == claimed["id"]
