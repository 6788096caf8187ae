"""Tasks that an agent starts on a server without a2a_celery, and that are cancelled with the agent's task, on every
pool and broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.clients.bindings import rest
from tests.support.processes.plain_server import Steps, plain_server
from tests.support.processes.system_under_test import SystemUnderTest, running_system
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.each_kind

DELEGATING = ("streams", "submits-in-a-thread", "submits-in-a-task", "publishes-a-chain")
"""Agents of `delegating_agents`. This module does not import `delegating_agents`, because the import would register the
agents in a shared app."""

POOLS = ("prefork", "threads", "solo", "asyncio")
"""Pools on which plain functions and steps can use asyncio. All greenlets of gevent share one thread."""


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder, app = tmp_path_factory.mktemp(request.param), "tests.support.agents.delegating_agents"
    with running_system(folder, request.param, broker, app=app) as system:
        system.fleet.watcher()
        if request.param == "solo":  # one solo worker cannot execute an agent and its step at the same time
            system.fleet.worker(pool="solo")
        yield system


@pytest.fixture
async def remote_agent() -> AsyncIterator[tuple[Steps, str]]:
    executor = Steps()
    async with plain_server(executor) as url:
        yield executor, url


def has_polled(system: SystemUnderTest, root_id: str) -> bool:
    """Return True if a step of the canvas that `root_id` started has sent its message and waits for its next poll."""
    steps = [event["uuid"] for event in system.events.whole if event.get("root_id") == root_id != event["uuid"]]
    return any("retried" in system.events.of[step] for step in steps)


@pytest.mark.parametrize("agent", DELEGATING)
@pytest.mark.parametrize("cause", ["client", "operator"])
async def test_a_remote_task_is_cancelled_with_its_agent(
    system: SystemUnderTest, remote_agent: tuple[Steps, str], agent: str, cause: str
) -> None:
    if cause == "operator" and system.pool == "prefork" and agent == "submits-in-a-task":
        return  # Celery terminates the process of a plain task
    executor, url = remote_agent
    task_id = await asyncio.to_thread(system.send, agent, url)

    async def has_begun() -> bool:
        if agent == "publishes-a-chain" and not has_polled(system, f"{task_id}.1"):
            return False  # a process that is killed earlier has not recorded the task that it has started
        return bool(executor.begun) and system.is_in(task_id, "WORKING")

    await eventually_async(has_begun, what="the remote task begins")
    if cause == "client":
        await asyncio.to_thread(rest, system.gateway, "POST", f"/tasks/{task_id}:cancel", {}, agent=agent)
    else:
        await asyncio.to_thread(system.celery.control.terminate, f"{task_id}.1")

    async def is_canceled() -> bool:
        return system.is_in(task_id, "CANCELED") and executor.canceled == executor.begun

    await eventually_async(is_canceled, what="the remote task is cancelled")
