"""LangGraph graphs and LlamaIndex workflows on real workers that are killed, and their questions over each binding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.acceptance.test_durable_steps import wait_until_reached
from tests.acceptance.test_structured_questions import Talk
from tests.support.agents.durable_agents import lines
from tests.support.clients.bindings import ServedFleet
from tests.support.clients.talk import HEADERS, TIMEOUT, read, state
from tests.support.processes.fleet import Gateway, running_fleet
from tests.support.waiting import eventually

APPS = ("tests.support.agents.langgraph_agents", "tests.support.agents.llamaindex_agents")
STEPS = ("a", "b", "c")
"""Nodes or steps of the agents."""


def say(gateway: Gateway, text: str, context_id: str, **configuration: Any) -> dict[str, Any]:
    """Begin a task in a context and return the task."""
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "contextId": context_id, "parts": [{"text": text}]}
    body = {"message": message, "configuration": configuration}
    url = f"{gateway.url}/agents/works/message:send"
    task: dict[str, Any] = httpx.post(url, json=body, headers=HEADERS, timeout=TIMEOUT).json()["task"]
    return task


def texts(task: dict[str, Any]) -> list[str]:
    return ["".join(part["text"] for part in artifact["parts"]) for artifact in task["artifacts"]]


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_agent_continues_after_its_last_step_on_another_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, app: str
) -> None:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    env = {"A2A_LEASE_TTL": "5", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, "redis", app=app, **env) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=2)
        context_id = str(uuid4())
        assert texts(say(gateway, "first", context_id)) == ["first"]
        worker.kill()

        worker = fleet.worker(pool=pool, concurrency=2)
        task = say(gateway, "stop", context_id, returnImmediately=True)
        for name in STEPS:
            wait_until_reached(tmp_path, f"in-{name}")
            worker.kill()
            worker = fleet.worker(pool=pool, concurrency=2)
        eventually(lambda: state(read(gateway, "works", task)) not in ("SUBMITTED", "WORKING"), what="the task ends")

        ended_task = read(gateway, "works", task)
        assert (state(ended_task), texts(ended_task)) == ("COMPLETED", ["first; stop"])
        assert lines("stop", "nodes") == ["a", "a", "b", "b", "c", "c"]
        assert texts(say(gateway, "last", context_id)) == ["first; stop; last"]
        assert lines("last", "nodes") == list(STEPS)


@pytest.mark.merge
@pytest.mark.parametrize("app", APPS)
async def test_questions_are_answered_over_each_binding(tmp_path: Path, app: str) -> None:
    with running_fleet(tmp_path, "redis", app=app) as fleet:
        served_fleet = ServedFleet(fleet, fleet.gateway(grpc=True), fleet.worker(pool="threads", concurrency=2))
        for binding in ("JSONRPC", "HTTP+JSON", "GRPC"):
            talk = Talk(served_fleet, "asks", binding)
            await talk.say({"text": "book"})
            assert (talk.state, talk.question[0]["text"]) == ("INPUT_REQUIRED", "Which city?")
            served_fleet.worker.kill()
            served_fleet = ServedFleet(fleet, served_fleet.gateway, fleet.worker(pool="threads", concurrency=2))
            talk.fleet = served_fleet
            await talk.say({"text": "Paris"})
            assert (talk.state, talk.question[0]["text"]) == ("INPUT_REQUIRED", "Which day?")
            refused_answer = await talk.say({"data": {"day": 1}})
            assert not refused_answer.is_success, json.dumps(refused_answer.data)
            await talk.say({"data": {"day": "Monday"}})
            assert (talk.state, talk.result) == ("COMPLETED", "Paris on Monday")
