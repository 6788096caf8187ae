"""Calls of `A2A.submit` in a worker, by agents and Celery tasks, on every pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.system_under_test import SystemUnderTest, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

AGENTS = ("submits", "submits-in-a-thread", "submits-in-a-task")
"""Agents of `submitting_agents`. This module does not import `submitting_agents`, because the import would register the
agents in a shared app."""


@pytest.fixture(scope="module", params=["prefork", "threads", "solo", "gevent", "asyncio"])
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    """System whose worker submits before it executes an agent: on gevent, both use one event loop."""
    folder, app = tmp_path_factory.mktemp(request.param), "tests.support.agents.submitting_agents"
    with running_system(folder, request.param, broker, app=app) as system:
        system.celery.send_task("submitting.submits", ["first"], queue=system.fleet.queue)
        eventually(lambda: "of echo: completed" in system.worker.output(), what="the submitted task ends")
        yield system


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_submits_a_message(system: SystemUnderTest, agent: str) -> None:
    [artifact] = system.wait_for_end(agent, system.send(agent, "hello"))["artifacts"]

    [echo] = system.wait_for_end("echo", artifact["parts"][0]["text"])["artifacts"]
    assert echo["parts"][0]["text"] == "hello"
