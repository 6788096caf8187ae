"""Waits between durable steps on real workers and watchers that are killed before, during and after each wait.

Each kind of wait continues once with the same value, and no step around the wait is repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from a2a_celery.store import Keys
from tests.acceptance.test_durable_steps import require_ended, wait_until_reached
from tests.support.agents.durable_agents import lines
from tests.support.clients.bindings import message_json, rest
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.store.records import endings_in, log_of
from tests.support.waiting import eventually
from tests.tiers import at_night

pytestmark = pytest.mark.each_kind

RECEIVED = {
    "sleeps": "awake",
    "waits-for-signal": "Ann",
    "waits-in-thread": "Bob",
    "asks-number": "4",
    "listens-once": "left",
    "interrupted": "left",
    "calls-child": "result 2",
    "calls-remote": "result 2",
}
"""Value that each agent's wait returns."""

IN_A_RUN = ("listens-once", "interrupted", "calls-remote")
"""Agents whose run continues while they wait."""

CHILDREN = ("child", "remote-child")


@dataclass
class Waits:
    """Fleet with one task of each agent, and the worker and the watcher that are killed."""

    fleet: Fleet
    pool: str
    gateway: Gateway
    folder: Path

    def start(self) -> None:
        """Start a worker with a slot for each agent and its child, and a watcher."""
        self.worker = self.fleet.worker(pool=self.pool, concurrency=len(RECEIVED) + len(CHILDREN))
        self.watcher = self.fleet.watcher()

    def kill(self) -> None:
        """Kill the worker and the watcher."""
        self.worker.kill()
        self.watcher.kill()

    def begin(self) -> None:
        """Send the first message to each agent."""
        self.tasks = {agent: send(self.gateway, agent, agent, returnImmediately=True) for agent in RECEIVED}

    def kill_at(self, place: str) -> None:
        """Wait until each agent has reached a place, then kill the worker and the watcher, and start new ones."""
        for agent in RECEIVED:
            wait_until_reached(self.folder, f"{agent}.{place}")
        self.kill()
        self.start()

    def is_waiting(self, agent: str) -> bool:
        """Return True if the agent waits, either suspended or in a run that continues."""
        if agent in IN_A_RUN:
            return bool(lines(agent, "waits"))
        with Redis.from_url(self.fleet.redis.store_url) as redis:
            phase = redis.hget(Keys("a2a").task(self.tasks[agent]["id"]).record, "phase")
        has_slept = agent == "sleeps" and (self.folder / "sleeps.after").exists()
        asks = state(read(self.gateway, agent, self.tasks[agent])) == "INPUT_REQUIRED"
        return phase == b"suspended" or has_slept or asks

    def deliver(self) -> None:
        """Send the signals and messages for which the agents wait."""
        for agent in ("waits-for-signal", "waits-in-thread"):
            body: dict[str, Any] = {"name": "go", "payload": {"by": RECEIVED[agent]}}
            reply = rest(self.gateway, "POST", f"/tasks/{self.tasks[agent]['id']}:signal", body, agent=agent)
            assert (reply.status_code, reply.json()["resumed"]) == (202, True), reply.text
        for agent, text in (("asks-number", "3"), ("listens-once", "left"), ("interrupted", "left")):
            message = message_json(text, taskId=self.tasks[agent]["id"])
            message["configuration"] = {"returnImmediately": True}
            assert rest(self.gateway, "POST", "/message:send", message, agent=agent).status_code == 200
        (self.folder / "child.go-on").touch()


@pytest.mark.parametrize("pool", at_night(["prefork", "threads", "asyncio"], merge=["prefork", "asyncio"]))
def test_waits_of_each_kind_on_processes_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, broker: str
) -> None:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    env = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, broker, app="tests.support.agents.waits_between_steps", **env) as fleet:
        waits = Waits(fleet, pool, fleet.gateway(), tmp_path)
        fleet.set_variable("TEST_GATEWAY", waits.gateway.url)
        waits.start()
        waits.begin()
        waits.kill_at("before")
        for agent in RECEIVED:
            eventually(lambda a=agent: waits.is_waiting(a), what=f"{agent} waits")
        for child in CHILDREN:
            eventually(lambda c=child: lines(c, "waits"), what=f"{child} works")
        waits.kill()
        waits.deliver()
        waits.start()
        waits.kill_at("after")
        waits.kill_at("end")

        for agent, expected_lines in RECEIVED.items():
            task = waits.tasks[agent]
            require_ended(waits.gateway, agent, task, expected_lines)
            assert set(lines(agent, "received")) == {expected_lines}, "each attempt receives the same value"
            assert Counter(lines(agent, "executed")) == {"0": 1, "2": 1}, agent
            assert lines(agent, "effects") == ["0", "2"]
            assert endings_in(log_of(fleet.redis.store_url, task)) == ["COMPLETED"]
        for child in CHILDREN:
            assert lines(child, "executed") == ["0", "2"], "one child, whose steps are not repeated"
