"""Hooks around runs on real workers, for each kind of agent, on every pool and broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from a2a_celery.lifecycle.outcomes import AGENT_FAILED
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of

pytestmark = pytest.mark.each_kind

AGENTS = ("function", "plain-function", "executor", "celery-task")
SECRET = "a secret"
"""Secret of `hooked_agents`. This module does not import `hooked_agents`, because the import would register its agents
in a shared app."""

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, app="tests.support.agents.hooked_agents") as system:
        yield system


def run_task(system: SystemUnderTest, kind: str, text: str) -> dict[str, Any]:
    """Send a message, wait until the task has finished, and return the task."""
    return system.wait_for_end(kind, system.send(kind, text))


@pytest.mark.parametrize("kind", AGENTS)
def test_hooks_rewrite_the_events_and_add_metadata(system: SystemUnderTest, kind: str) -> None:
    task = run_task(system, kind, f"this is {SECRET}")

    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"][0]["text"] == "this is ***"
    expected = {"before": kind, "after": "completed", "first": "IDLE to INITIALIZING"}
    assert {name: task["metadata"][name] for name in expected} == expected


@pytest.mark.parametrize("kind", AGENTS)
def test_a_hook_refuses_the_run(system: SystemUnderTest, kind: str) -> None:
    task = run_task(system, kind, "refuse")

    assert (task["status"]["state"], text_of(task)) == ("TASK_STATE_REJECTED", "Not today.")
    assert task["metadata"]["after"] == "rejected"
    assert "artifacts" not in task


@pytest.mark.parametrize("kind", AGENTS)
def test_a_hook_that_fails_drops_its_event_and_fails_the_run(system: SystemUnderTest, kind: str) -> None:
    task = run_task(system, kind, "exit")

    assert (task["status"]["state"], text_of(task)) == ("TASK_STATE_FAILED", AGENT_FAILED)
    assert task["status"]["message"]["metadata"]["reference"] in system.worker.output()
    assert "artifacts" not in task
    assert run_task(system, kind, "hello")["status"]["state"] == "TASK_STATE_COMPLETED"
