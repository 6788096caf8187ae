"""Model and tool calls by framework agents on real workers that are killed. No finished call is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.test_durable_steps import wait_until_reached
from tests.support.agents.durable_agents import lines
from tests.support.agents.framework_script import AGENTS, ANSWER, ROUNDS, STOPS
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import eventually


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_calls_on_workers_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, broker: str
) -> None:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    # a worker that imports all frameworks under load must not lose its leases, or its calls would be repeated
    env = {"A2A_LEASE_TTL": "10", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, broker, app="tests.support.agents.framework_agents", **env) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=len(AGENTS))
        tasks = {agent: send(gateway, agent, agent, returnImmediately=True) for agent in AGENTS}
        for number in STOPS:
            for agent in AGENTS:
                wait_until_reached(tmp_path, f"{agent}.before-{number}")
            worker.kill()
            worker = fleet.worker(pool=pool, concurrency=len(AGENTS))

        for agent, task in tasks.items():
            eventually(
                lambda a=agent, t=task: state(read(gateway, a, t)) not in ("SUBMITTED", "WORKING"), what="the task ends"
            )
            ended_task = read(gateway, agent, task)
            assert state(ended_task) == "COMPLETED", ended_task
            texts = [
                "".join(part.get("text", "") for part in item["parts"]).strip() for item in ended_task["artifacts"]
            ]
            assert texts == [ANSWER]
            assert lines(agent, "questions") == [str(number) for number in range(len(ROUNDS))]
            assert sorted(lines(agent, "looked-up")) == ["a", "b", "c", "d", "e"]
        for agent in ("agent-framework", "strands", "pydantic-ai", "openai-agents"):
            assert len(set(lines(agent, "keys"))) == 5
