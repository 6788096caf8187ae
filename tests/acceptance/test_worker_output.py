"""Output of agents and of Celery in the log of a worker: one line for each printed line, and none for a pause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.bindings import ServedFleet, message_json, rest
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import eventually


@pytest.fixture(scope="module", params=["prefork", "threads", "asyncio", "spawn"])
def served_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with running_fleet(tmp_path_factory.mktemp(request.param), app="tests.support.agents.printing_agents") as fleet:
        yield ServedFleet(fleet, fleet.gateway(), fleet.worker(pool=request.param))


def send(served_fleet: ServedFleet, agent: str, text: str, task_id: str = "") -> str:
    """Send a message, and return the id of the task."""
    message = message_json(text, **({"taskId": task_id} if task_id else {}))
    answer = rest(served_fleet.gateway, "POST", "/message:send", message, agent=agent)
    return str(answer.json()["task"]["id"])


def test_a_printed_line_is_one_line_of_the_log(served_fleet: ServedFleet) -> None:
    send(served_fleet, "printer", "2")
    worker = served_fleet.worker
    eventually(lambda: "unfinished 2" in worker.output(), what="the unfinished line is logged")

    lines = [line.partition("] ")[2] for line in worker.output().splitlines() if ": WARNING/" in line]
    assert lines == ["one 2 3", "two halves", "to stderr 2", "first", "unfinished 2"]
    assert "first\nsecond\n" in worker.output()


def test_a_pause_is_no_ignored_task(served_fleet: ServedFleet) -> None:
    task_id = send(served_fleet, "asks", "hello")
    send(served_fleet, "asks", "7", task_id)
    send(served_fleet, "publisher", "hello")
    worker = served_fleet.worker
    eventually(lambda: re.search(r"printing_agents\.ignored\[.*\] ignored", worker.output()), what="it is ignored")
    ends = [line for line in worker.output().splitlines() if f"[{task_id}" in line and "received" not in line]
    assert "succeeded" in ends[-1]
    assert not [line for line in ends if line.endswith("ignored")]


def test_output_that_is_not_redirected_is_unchanged(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app="tests.support.agents.printing_agents") as fleet:
        worker = fleet.worker(pool="threads", TEST_REDIRECT="no", PYTHONUNBUFFERED="1")
        send(ServedFleet(fleet, fleet.gateway(), worker), "printer", "2")
        eventually(lambda: "unfinished 2" in worker.output(), what="all is printed")
        assert "\none 2 3\ntwo halves\n" in worker.output()
