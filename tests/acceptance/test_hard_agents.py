"""Agents that break rules. None of their tasks stays WORKING, and other tasks are not affected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients.talk import cancel_task, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell


@pytest.fixture(scope="module", params=["prefork", "threads"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_fleet(
        folder, A2A_CANCEL_GRACE="1", A2A_LEASE_TTL="2", app="tests.support.agents.hard_agents"
    ) as fleet:
        fleet.worker(pool=request.param, concurrency=2)
        yield fleet, fleet.gateway()


@pytest.mark.parametrize("agent", ["wrong-parts", "unsendable-question", "exits-in-a-task", "exits-when-built"])
def test_an_agent_that_does_it_wrong_fails_and_the_next_is_served(site: tuple[Fleet, Gateway], agent: str) -> None:
    gateway = site[1]

    assert state(send(gateway, agent)) == "FAILED"
    for _ in range(4):  # most likely reaches each child of the pool
        assert state(send(gateway, "echo", "still here")) == "COMPLETED"


def test_a_cancel_that_cancels_its_own_task_cancels(site: tuple[Fleet, Gateway]) -> None:
    gateway = site[1]
    task = send(gateway, "cancels-itself", returnImmediately=True)
    eventually(lambda: state(read(gateway, "cancels-itself", task)) == "WORKING", what="the task is WORKING")

    assert state(cancel_task(gateway, "cancels-itself", task)) == "CANCELED"


def test_an_executor_may_finish_its_work_after_its_final_event(site: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = site
    assert state(send(gateway, "tidies-up", "3.5")) == "COMPLETED"

    eventually(lambda: "tidied up" in fleet.processes[0].output(), what="it finishes, longer than its lease later")


def test_a_blocking_call_from_an_async_agent_is_refused_not_a_deadlock(site: tuple[Fleet, Gateway]) -> None:
    assert state(send(site[1], "blocks-its-loop")) == "FAILED"
    assert state(send(site[1], "echo", "still here")) == "COMPLETED"


def test_hanging_functions_take_no_thread_from_others(site: tuple[Fleet, Gateway]) -> None:
    gateway = site[1]
    hanging_tasks = [send(gateway, "hangs", "90", returnImmediately=True) for _ in range(2)]
    for task in hanging_tasks:
        eventually(lambda t=task: state(read(gateway, "hangs", t)) == "WORKING", what="it hangs")
        assert state(cancel_task(gateway, "hangs", task)) == "CANCELED"

    assert state(send(gateway, "hangs", "0")) == "COMPLETED"


def test_a_failure_meant_for_the_client_carries_its_parts(site: tuple[Fleet, Gateway]) -> None:
    parts = send(site[1], "fails-with-parts")["status"]["message"]["parts"]

    assert parts == [{"text": "No such city."}, {"data": {"cities": ["Rome"]}}]
