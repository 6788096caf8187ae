"""Common interface of a simulation and a real fleet, for the conformance tests of the test kit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
from a2a.types import StreamResponse

from a2a_celery.client import RemoteAgent, Result, Session
from a2a_celery.testing import AgentFleet, AgentTester
from tests.support.agents.kit_agents import a2a
from tests.support.waiting import LIMIT, eventually_async


class System(Protocol):
    """System that runs one agent."""

    client: RemoteAgent

    async def crash(self) -> None:
        """Kill the workers and start new ones."""

    async def advance(self, seconds: float) -> None:
        """Advance the simulated clock, if the system has one."""

    async def signal(self, task_id: str, name: str, payload: Any) -> None:
        """Send a signal to a task."""


class Simulation:
    """System that runs an agent in an `AgentTester`."""

    def __init__(self, tester: AgentTester) -> None:
        self.tester, self.client = tester, tester.client

    async def crash(self) -> None:
        await self.tester.crash()

    async def advance(self, seconds: float) -> None:
        await self.tester.advance(seconds)

    async def signal(self, task_id: str, name: str, payload: Any) -> None:
        await a2a.signal_async(task_id, name, payload)


class RealFleet:
    """System that runs an agent in an `AgentFleet`, in real time."""

    def __init__(self, fleet: AgentFleet, agent: str, client: RemoteAgent) -> None:
        self.client = client
        self._fleet, self._agent = fleet, agent

    async def crash(self) -> None:
        self._fleet.kill_workers()
        await asyncio.to_thread(self._fleet.start_worker)

    async def advance(self, seconds: float) -> None:
        """Do nothing, because `Scenario.result` waits in real time."""

    async def signal(self, task_id: str, name: str, payload: Any) -> None:
        url = f"{self._fleet.url}/agents/{self._agent}/tasks/{task_id}:signal"
        async with httpx.AsyncClient() as http:
            reply = await http.post(
                url, json={"name": name, "payload": payload}, headers={"A2A-Version": "1.0"}, timeout=LIMIT
            )
        assert reply.status_code == 202, reply.text


class Scenario:
    """Client of a system's agent."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.client, self._folder = system, system.client, folder

    async def send(self, content: Any) -> Result:
        """Send a message and return the result of the turn."""
        return await self.client.session().send(content, deadline=LIMIT)

    async def answer(self, result: Result, content: Any) -> Result:
        """Answer a question and return the result of the turn."""
        session = self.client.session(Session(result.context_id, result.task_id, result.state))
        return await session.send(content, deadline=LIMIT)

    async def begin(self, content: Any) -> Result:
        """Send a message and return without waiting for the turn."""
        return await self.client.submit(Session().message(content))

    async def result(self, first_result: Result) -> Result:
        """Return the result of a turn that `begin` has started."""
        session = self.client.session(Session(first_result.context_id, first_result.task_id, first_result.state))
        return await session.wait(deadline=LIMIT)

    async def events(self, content: Any) -> list[StreamResponse]:
        """Send a message and return the events of the turn."""
        return [event async for event in self.client.stream(Session().message(content), deadline=LIMIT)]

    def places(self, first_result: Result) -> list[str]:
        """Return the places that the agent has recorded for the task."""
        path = self._folder / first_result.task_id
        return path.read_text().splitlines() if path.exists() else []

    async def wait_for_place(self, first_result: Result, place: str) -> None:
        """Wait until the agent has recorded `place`."""

        async def is_reached() -> bool:
            return place in self.places(first_result)

        await eventually_async(is_reached, what=f"the agent is at {place!r}")

    async def wait_for_metadata(self, first_result: Result, key: str) -> None:
        """Wait until the metadata of the task has `key`."""

        async def is_there() -> bool:
            task = (await self.client.get(first_result.task_id)).raw
            return task is not None and key in task.metadata

        await eventually_async(is_there, what=f"the task has {key}")


@asynccontextmanager
async def simulated_system(agent: str) -> AsyncIterator[System]:
    """Run `agent` in a simulation."""
    async with AgentTester(a2a, agent) as tester:
        yield Simulation(tester)


@asynccontextmanager
async def fleet_system(fleet: AgentFleet, agent: str) -> AsyncIterator[System]:
    """Run `agent` on `fleet`."""
    async with fleet.agent(agent) as client:
        yield RealFleet(fleet, agent, client)
