"""Failover under load. The primary behind Sentinels is killed while clients send messages.

No request hangs. Each accepted task reaches a terminal state, except tasks that may be lost according to
docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.clients.talk import HEADERS, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.processes.restarts import valkey_server
from tests.support.processes.sentinels import MASTER_NAME, SentinelGroup, running_sentinels
from tests.support.waiting import LIMIT, eventually, eventually_async
from tests.tiers import at_night

ENDED = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
LEASE = {"A2A_LEASE_TTL": "4", "A2A_REDISPATCH_AFTER": "5"}


@dataclass
class AcceptedTask:
    """Accepted task. `after_failover` is true if the new primary accepted it."""

    url: str
    after_failover: bool
    state: str = ""


@dataclass
class Load:
    """Clients that send one message after the other, and the accepted tasks."""

    gateways: list[Gateway]
    http: httpx.AsyncClient
    accepted_tasks: list[AcceptedTask] = field(default_factory=list)
    refusal_codes: set[int] = field(default_factory=set)
    failed_over: bool = False
    is_stopping: bool = False

    async def send_all(self, agent: str, text: str, **configuration: Any) -> None:
        """Send messages to `agent` until the load stops, and read each response completely."""
        for gateway in cycle(self.gateways):
            if self.is_stopping:
                return
            await self._send(f"{gateway.url}/agents/{agent}", text, configuration)

    def count_completed(self, agent: str, *, after_failover: bool) -> int:
        """Return the number of COMPLETED tasks of `agent` that were accepted before or after the failover."""
        return sum(
            task.state == "COMPLETED" and task.after_failover == after_failover and f"/{agent}/" in task.url
            for task in self.accepted_tasks
        )

    async def find(self, task: AcceptedTask) -> str:
        """Return the current state of a task, "LOST" if the task does not exist, or "" after another error."""
        response = await self.http.get(task.url)
        if response.status_code == 404:
            return "LOST"
        return state(response.json()) if response.status_code == 200 else ""

    async def _send(self, agent: str, text: str, configuration: dict[str, Any]) -> None:
        message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"message": message, "configuration": configuration}
        is_stream = agent.endswith("/pace")
        url = f"{agent}/message:{'stream' if is_stream else 'send'}"
        async with self.http.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                self.refusal_codes.add(response.status_code)
                return
            task: AcceptedTask | None = None
            async for line in response.aiter_lines():
                event = json.loads(line.removeprefix("data: ")) if line.startswith(("data: {", "{")) else {}
                if "task" in event and task is None:
                    task = AcceptedTask(f"{agent}/tasks/{event['task']['id']}", self.failed_over)
                    self.accepted_tasks.append(task)
                task_json = event.get("task") or event.get("statusUpdate")
                if task is not None and task_json:
                    task.state = state(task_json)


OWN, SHARED, CONFIRMED = "a broker of its own", "the broker behind the same Sentinels", "replicas that confirm"
VALKEY = "the broker behind the same Sentinels, on Valkey"


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SentinelGroup]:
    server = valkey_server() if request.node.callspec.params["fleet"] == VALKEY else None
    # on a loaded machine, a shorter silence replaces the new primary too
    with running_sentinels(tmp_path / "sentinels", server=server, down_after_ms=3000) as group:
        yield group


@pytest.fixture(params=at_night([OWN, SHARED, CONFIRMED, VALKEY], merge=[SHARED]))
def fleet(request: pytest.FixtureRequest, group: SentinelGroup, tmp_path: Path) -> Iterator[Fleet]:
    """Fleet that finds the primary of its store through Sentinels."""
    env = {"A2A_STORE_URL": group.store_url, **LEASE}
    app = "tests.support.agents.basic"
    if request.param == CONFIRMED:
        env["A2A_STORE_WAIT_REPLICAS"] = "1"
    if request.param in (SHARED, VALKEY):
        url = group.broker_url()
        env |= {"CELERY_BROKER_URL": url, "TEST_RESULTS": url, "TEST_SENTINEL_MASTER": MASTER_NAME}
        app = "tests.support.agents.sentinel_agents"
    with running_fleet(tmp_path, app=app, **env) as fleet:
        yield fleet


async def test_a_killed_primary_hangs_nothing_and_loses_nothing_but_its_newest_writes(
    fleet: Fleet, group: SentinelGroup
) -> None:
    gateways = [fleet.gateway(), fleet.gateway()]
    for _ in range(2):
        fleet.worker()
        fleet.watcher()
    async with httpx.AsyncClient(headers=HEADERS, timeout=LIMIT) as http:
        load = Load(gateways, http)
        async with asyncio.TaskGroup() as clients:
            for _ in range(2):
                clients.create_task(load.send_all("echo", "hello"))
                clients.create_task(load.send_all("pace", "10 0.1"))
            clients.create_task(load.send_all("count", "3", returnImmediately=True))
            await wait_for_ends(load)
            killed_port = await asyncio.to_thread(group.kill_primary)
            await asyncio.to_thread(group.wait_for_failover, killed_port)
            load.failed_over = True
            await wait_for_ends(load)
            load.is_stopping = True

        end_states = {task.url: await has_ended(load, task) for task in load.accepted_tasks}

    lost_tasks = [task for task in load.accepted_tasks if end_states[task.url] == "LOST"]
    are_confirmed = "A2A_STORE_WAIT_REPLICAS" in fleet.environment
    assert [task for task in lost_tasks if task.after_failover or are_confirmed] == []
    assert load.refusal_codes <= {503}
    assert {end_states[task.url] for task in load.accepted_tasks if task.after_failover} == {"COMPLETED"}
    check_operators(fleet, gateways[0], group, killed_port)


async def wait_for_ends(load: Load) -> None:
    """Wait until tasks of each agent have been COMPLETED in the current phase, before or after the failover."""

    async def has_ends() -> bool:
        ends = [load.count_completed(agent, after_failover=load.failed_over) for agent in ("echo", "pace")]
        return all(number >= 3 for number in ends)

    await eventually_async(has_ends, what="tasks of each client are COMPLETED")


async def has_ended(load: Load, task: AcceptedTask) -> str:
    """Wait until the task is terminal or lost. Return its terminal state, or "LOST"."""

    async def end() -> str:
        task_state = await load.find(task)
        return task_state if task_state in (*ENDED, "LOST") else ""

    return await eventually_async(end, what=f"{task} ends or is lost")


def check_operators(fleet: Fleet, gateway: Gateway, group: SentinelGroup, killed_port: int) -> None:
    """Restart the killed server as a replica. Require that revokes reach a run and that the doctor reports no
    problem."""
    group.restart(killed_port)
    eventually(lambda: group.online_replicas() == 2, what="the killed primary follows the new one")
    task = send(gateway, "silent", "600", returnImmediately=True)

    def is_canceled() -> bool:
        assert fleet.command("control", "terminate", "SIGTERM", f"{task['id']}.1").returncode in (0, 69)
        content = httpx.get(f"{gateway.url}/agents/silent/tasks/{task['id']}", headers=HEADERS, timeout=LIMIT).json()
        return state(content) == "CANCELED"

    eventually(is_canceled, what="a revoke cancels the run")
    doctor = fleet.command("a2a", "doctor")
    print(doctor.stdout, doctor.stderr)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
