"""Store that an older commit has written. The processes of this commit read, list and continue its tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.waiting import eventually
from tests.tools.store_dump import (
    CANCELED,
    COMPLETED,
    ENVIRONMENT,
    FAILED,
    INPUT_REQUIRED,
    SUBMITTED,
    WORKING,
    Owner,
    load,
)

DUMPS = sorted((Path(__file__).parents[1] / "store" / "data").glob("store-*.json.gz"))


@pytest.fixture(params=DUMPS, ids=lambda path: path.name.split(".")[0])
def dump(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Fleet, dict[str, Any]]]:
    """Fleet without processes on a migrated store that contains a dump, and the dump."""
    archive = f"sqlite+aiosqlite:///{tmp_path}/archive.sqlite3"
    with running_fleet(
        tmp_path, app="tests.support.agents.stored_agents", A2A_ARCHIVE_URL=archive, **ENVIRONMENT
    ) as fleet:
        content = load(request.param, redis.Redis.from_url(fleet.redis.store_url))
        refusal = fleet.command("a2a", "watcher")  # a schema of the past
        assert refusal.returncode == 1
        assert "a2a migrate` once" in refusal.stderr
        assert refusal.stderr.count("\n") == 1, refusal.stderr
        migration = fleet.command("a2a", "migrate")
        assert migration.returncode == 0, migration.stderr
        yield fleet, content


def owners(fleet: Fleet, dump: dict[str, Any]) -> dict[str, Owner]:
    """Return clients of a new gateway, one for each owner of the dump's tasks."""
    gateway = fleet.gateway()
    found: dict[str, Owner] = {}
    for entry in dump["tasks"]:
        owner = found.setdefault(entry["owner"], Owner(gateway, entry["owner"]))
        owner.agents[entry["task"]["id"]] = entry["agent"]
    return found


def task_id(dump: dict[str, Any], agent: str, state: str, number: int = 0) -> str:
    """Return the id of a task of the dump."""
    ids = [e["task"]["id"] for e in dump["tasks"] if e["agent"] == agent and e["task"]["status"]["state"] == state]
    return str(ids[number])


def as_today(task: dict[str, Any]) -> dict[str, Any]:
    """Return a response of GetTask in today's form: times in milliseconds, and one text for the chunks of a text."""
    task = json.loads(re.sub(r'(T\d\d:\d\d:\d\d\.\d{3})\d+Z"', r'\1Z"', json.dumps(task)))
    for artifact in task.get("artifacts", []):
        artifact["parts"] = [{**artifact["parts"][0], "text": "".join(part["text"] for part in artifact["parts"])}]
    return task


def test_all_tasks_are_read_and_listed(dump: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, content = dump
    clients = owners(fleet, content)

    for entry in content["tasks"]:
        task = clients[entry["owner"]].read(entry["task"]["id"])
        assert task == as_today(entry["task"]), entry["agent"]
    for name, ids in content["lists"].items():
        assert clients[name].list() == ids


def test_live_tasks_continue(dump: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, content = dump
    clients = owners(fleet, content)
    fleet.worker(pool="threads", concurrency=16)
    fleet.watcher()
    ann, ben = clients["ann"], clients["ben"]

    def state_of(owner: Owner, task: str) -> str:
        return str(owner.read(task)["status"]["state"])

    first, second = (task_id(content, "asks", INPUT_REQUIRED, number) for number in (0, 1))
    ann.send("asks", "Ann", taskId=first)
    eventually(lambda: "How many?" in json.dumps(ann.read(first)["status"]), what="the second question")
    ann.send("asks", "3", taskId=first, state=COMPLETED)
    assert ann.send("asks", "4", taskId=second, state=COMPLETED)["artifacts"][0]["parts"][0]["text"] == "Ann: 4"

    approval, calls, steps = (task_id(content, agent, WORKING) for agent in ("approval", "calls", "steps"))
    assert fleet.command("a2a", "signal", approval, "approval", '"yes"').returncode == 0
    eventually(lambda: state_of(ann, approval) == COMPLETED, what="the signal arrives")
    assert state_of(ann, calls) == WORKING
    eventually(lambda: state_of(ann, steps) == COMPLETED, what="another worker continues after the first step")
    ann.request("POST", f"sleeps/tasks/{task_id(content, 'sleeps', WORKING)}:cancel", {})
    ann.request("POST", f"calls/tasks/{calls}:cancel", {})
    eventually(lambda: state_of(ann, calls) == CANCELED, what="the parent is cancelled")

    steered, serial = (task_id(content, agent, WORKING) for agent in ("waits", "serial"))
    waiting, unserved = (task_id(content, agent, SUBMITTED) for agent in ("serial", "unserved"))
    eventually(lambda: state_of(ben, steered) == state_of(ben, serial) == FAILED, what="lost runs fail")
    eventually(lambda: state_of(ben, waiting) == WORKING, what="the next task of the context begins")
    ben.request("POST", f"unserved/tasks/{unserved}:cancel", {})
    lost = task_id(content, "lost", FAILED)
    assert fleet.command("a2a", "requeue", lost).returncode == 0


@pytest.mark.parametrize("content", [b"no log of any form", b"\0\0\0\3abc\0\0\0\0\x92"])
def test_an_unreadable_task_is_listed_without_its_contents(dump: tuple[Fleet, dict[str, Any]], content: bytes) -> None:
    fleet, stored = dump
    clients = owners(fleet, stored)
    unreadable = task_id(stored, "words", COMPLETED)
    client = redis.Redis.from_url(fleet.redis.store_url)
    (log,) = client.scan_iter(f"*{unreadable}*:log")
    client.set(log, content, keepttl=True)

    assert clients["ann"].list() == stored["lists"]["ann"]
    page = clients["ann"].request("GET", "words/tasks?includeArtifacts=true")
    assert {task["id"]: bool(task["artifacts"]) for task in page["tasks"]} == {
        task["id"]: task["id"] != unreadable for task in page["tasks"]
    }
    assert {task["status"]["state"] for task in page["tasks"]} == {COMPLETED}
    assert f"task {unreadable} cannot be read and is listed without its contents" in fleet.processes[0].output()
