"""Tasks that an agent starts on a server without this package are cancelled with it, on every pool and broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from tests.support.clients import rest
from tests.support.plain_server import Steps, plain_server
from tests.support.system_under_test import SystemUnderTest, running_system
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.every_cell

DELEGATING = ("streams", "submits-in-a-thread", "submits-in-a-task", "publishes-a-chain")
"""Agents of the support module, which is not imported here because it registers them in a shared app."""

POOLS = ("prefork", "threads", "solo", "asyncio")
"""Pools on which plain functions and steps can use asyncio. All greenlets of gevent share one thread."""


class Recorder(Steps):
    """Executor that waits, and records the tasks that it has begun and those that it has cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str | None] = []
        self.canceled: list[str | None] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.begun.append(context.task_id)
        await super().execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await super().cancel(context, event_queue)
        self.canceled.append(context.task_id)


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder, app = tmp_path_factory.mktemp(request.param), "tests.support.delegating_agents"
    with running_system(folder, request.param, broker, app=app) as system:
        system.fleet.watcher()
        if request.param == "solo":  # which executes an agent or a step of it, but not both
            system.fleet.worker(pool="solo")
        yield system


@pytest.fixture
async def elsewhere() -> AsyncIterator[tuple[Recorder, str]]:
    recorder = Recorder()
    async with plain_server(recorder) as url:
        yield recorder, url


@pytest.mark.parametrize("agent", DELEGATING)
@pytest.mark.parametrize("how", ["client", "operator"])
async def test_a_remote_task_is_cancelled_with_its_agent(
    system: SystemUnderTest, elsewhere: tuple[Recorder, str], agent: str, how: str
) -> None:
    if how == "operator" and system.pool == "prefork":  # Celery ends the process of the agent
        return
    recorder, url = elsewhere
    task_id = await asyncio.to_thread(system.send, agent, url)

    async def has_begun() -> bool:
        return bool(recorder.begun) and system.is_in(task_id, "WORKING")

    await eventually_async(has_begun, what="the remote task begins")
    if how == "client":
        await asyncio.to_thread(rest, system.gateway, "POST", f"/tasks/{task_id}:cancel", {}, agent=agent)
    else:
        await asyncio.to_thread(system.celery.control.terminate, f"{task_id}.1")

    async def is_canceled() -> bool:
        return system.is_in(task_id, "CANCELED") and recorder.canceled == recorder.begun

    await eventually_async(is_canceled, what="the remote task is cancelled")
