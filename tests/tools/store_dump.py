"""Dump of a store with tasks of every kind, for tests that open the store of an older commit.

    python -m tests.tools.store_dump FILE

runs the agents of `stored_agents` on a fleet of this commit and writes the dump. A dump is gzipped JSON with these
fields:

- ``commit``: commit that wrote the store.
- ``keys``: for each key its type, its remaining time to live in milliseconds (null without an expiry) and its value, as
  Latin-1 text.
- ``tasks``: for each task its owner and the response of GetTask.
- ``lists``: for each owner the ids that ListTasks returned.

To write the dump of an older commit, copy this module and `stored_agents` into a checkout of that commit.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import redis

from tests.support.processes.fleet import Fleet, Gateway, free_port, running_fleet
from tests.support.receivers.receiver import receiver
from tests.support.waiting import eventually

SECRET_KEY = "0123456789abcdef" * 4
OWNERS = {"ann": "key-of-ann", "ben": "key-of-ben"}
API_KEYS = " ".join(f"{owner}:sha256:{sha256(key.encode()).hexdigest()}" for owner, key in OWNERS.items())
ENVIRONMENT = {
    "A2A_SECRET_KEY": SECRET_KEY,
    "A2A_AUTH_API_KEYS": API_KEYS,
    "A2A_ALLOW_NETWORKS": "127.0.0.0/8",
    "A2A_OPERATORS": "ann",
}

COMPLETED, WORKING, INPUT_REQUIRED = "TASK_STATE_COMPLETED", "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"
FAILED, REJECTED, CANCELED, SUBMITTED = (
    f"TASK_STATE_{state}" for state in ("FAILED", "REJECTED", "CANCELED", "SUBMITTED")
)


class Owner:
    """Client of a gateway that acts as one owner."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self.name = name
        headers = {"X-API-Key": OWNERS[name], "A2A-Version": "1.0"}
        self._http = httpx.Client(base_url=f"{gateway.url}/agents", headers=headers, timeout=60)
        self.agents: dict[str, str] = {}
        """Agents of the tasks that this owner has created, by the id of the task."""

    def send(self, agent: str, text: str, *, state: str = "", url: str = "", **fields: Any) -> dict[str, Any]:
        """Send a message, wait until the task has the state `state` unless it is "", and return the task.

        Args:
            agent: Name of the agent.
            text: Text of the message.
            state: State to wait for.
            url: URL of a webhook for the task, or "".
            fields: Additional fields of the message.
        """
        message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **fields}
        configuration: dict[str, Any] = {"returnImmediately": True}
        if url:
            configuration["taskPushNotificationConfig"] = {"url": url, "token": "token of the webhook"}
        task = self.request("POST", f"{agent}/message:send", {"message": message, "configuration": configuration})[
            "task"
        ]
        self.agents[task["id"]] = agent

        def has_state() -> dict[str, Any] | None:
            current = self.read(task["id"])
            return current if not state or current["status"]["state"] == state else None

        current = eventually(has_state, what=f"the task of {agent} is {state}")
        assert current is not None
        return current

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the response of GetTask."""
        return self.request("GET", f"{self.agents[task_id]}/tasks/{task_id}")

    def list(self) -> list[str]:
        """Return the ids of this owner's tasks of all agents in the order of ListTasks."""
        pages = [self.request("GET", f"{agent}/tasks?pageSize=100") for agent in sorted(set(self.agents.values()))]
        return [task["id"] for page in pages for task in page["tasks"]]

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON response of a successful request."""
        response = self._http.request(method, path, json=body)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        result: dict[str, Any] = response.json()
        return result


def create_ended_tasks(ann: Owner, ben: Owner, hook: Callable[[str], str]) -> None:
    """Create tasks that end, packed and not packed, with and without webhooks."""
    ann.send("echo", "Hello", state=COMPLETED)
    ann.send("words", "one two three", state=COMPLETED)
    ann.send("words", " ".join(f"word-{number}" for number in range(1500)), state=COMPLETED)
    ann.send("large", "a text", state=COMPLETED)
    ann.send("steps", "steps", state=COMPLETED)
    ann.send("shout", "quietly", state=COMPLETED)
    ann.send("fails", "a message", state=FAILED)
    ann.send("refuses", "a message", state=REJECTED)
    ann.send("calls", "echo", state=COMPLETED)
    ben.send("echo", "Hello from Ben", state=COMPLETED)
    first = ben.send("remembers", "one", state=COMPLETED)
    ben.send("remembers", "two", state=COMPLETED, contextId=first["contextId"])
    asked = ben.send("asks", "begin", state=INPUT_REQUIRED)
    ben.send("asks", "Ben", taskId=asked["id"], state=INPUT_REQUIRED)
    ben.send("asks", "3", taskId=asked["id"], state=COMPLETED)
    cancelled = ben.send("waits", "a message", state=WORKING)
    ben.request("POST", f"waits/tasks/{cancelled['id']}:cancel", {})
    eventually(lambda: ben.read(cancelled["id"])["status"]["state"] == CANCELED)
    ann.send("echo", "to a webhook", state=COMPLETED, url=hook("/delivered"))
    ann.send("echo", "to a webhook that is gone", state=COMPLETED, url=hook("/gone"))
    ann.send("echo", "to a webhook that is unreachable", state=COMPLETED, url=f"http://127.0.0.1:{free_port()}/hook")


def create_live_tasks(ann: Owner, ben: Owner) -> None:
    """Create tasks that wait or run."""
    ann.send("asks", "begin", state=INPUT_REQUIRED)
    second = ann.send("asks", "begin", state=INPUT_REQUIRED)
    ann.send("asks", "Ann", taskId=second["id"])
    eventually(lambda: "How many?" in json.dumps(ann.read(second["id"])["status"]), what="the second question")
    ann.send("sleeps", "a year", state=WORKING)
    ann.send("approval", "a signal", state=WORKING)
    ann.send("calls", "approval", state=WORKING)
    ann.send("steps", "wait", state=WORKING)
    steered = ben.send("waits", "a message", state=WORKING)
    ben.send("waits", "another message", taskId=steered["id"])
    serial = ben.send("serial", "first", state=WORKING)
    ben.send("serial", "second", contextId=serial["contextId"])
    ben.send("unserved", "a message")


def record(path: Path) -> None:
    """Write the dump of a new store to `path`."""
    with tempfile.TemporaryDirectory() as folder, receiver() as hooks:
        hooks.plan("/gone", [410] * 100)
        archive = f"sqlite+aiosqlite:///{folder}/archive.sqlite3"
        options = {"app": "tests.support.agents.stored_agents", "A2A_ARCHIVE_URL": archive, **ENVIRONMENT}
        with running_fleet(Path(folder), **options) as fleet:
            dump = _fill(fleet, hooks.url)
    path.write_bytes(gzip.compress(json.dumps(dump, separators=(",", ":")).encode(), mtime=0))


def _fill(fleet: Fleet, hook: Callable[[str], str]) -> dict[str, Any]:
    gateway, watcher, worker = fleet.gateway(), fleet.watcher(), fleet.worker(pool="threads", concurrency=16)
    ann, ben = Owner(gateway, "ann"), Owner(gateway, "ben")
    lost = ann.send("lost", "a message", state=WORKING)
    worker.kill()
    eventually(lambda: ann.read(lost["id"])["status"]["state"] == FAILED, what="the lost task has failed")
    worker = fleet.worker(pool="threads", concurrency=16)
    create_ended_tasks(ann, ben, hook)
    create_live_tasks(ann, ben)
    tick = {"schedule": "nightly", "agent": "echo", "message": "now", "owner": "ann"}
    fleet.command("call", "a2a.submit_scheduled", "--kwargs", json.dumps(tick))
    client = redis.Redis.from_url(fleet.redis.store_url)
    _wait_until_settled(ann)
    for process in (worker, watcher):
        process.kill()
    tasks = [
        {"owner": owner.name, "agent": owner.agents[id], "task": owner.read(id)}
        for owner in (ann, ben)
        for id in owner.agents
    ]
    lists = {owner.name: owner.list() for owner in (ann, ben)}
    gateway.kill()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return {"commit": commit, "keys": dict(_read_keys(client)), "tasks": tasks, "lists": lists}


def _wait_until_settled(ann: Owner) -> None:
    """Wait until all tasks and webhooks have reached the states in which the dump contains them."""
    steps = next(id for id in reversed(ann.agents) if ann.agents[id] == "steps")
    eventually(lambda: "message" in ann.read(steps)["status"], what="the first step is recorded")

    def count(path: str) -> int:
        page = ann.request("GET", f"../operator/v1/{path}")
        return sum(len(items) for items in page.values() if isinstance(items, list))

    for path, expected in {
        "tasks?phase=suspended": 4,
        "webhooks?state=dead": 1,
        "webhooks": 1,
        "dead-letters": 1,
    }.items():
        eventually(partial(lambda path, expected: count(path) == expected, path, expected), what=f"{expected} {path}")


def _read_keys(client: redis.Redis) -> Iterator[tuple[str, tuple[str, int | None, Any]]]:
    for key in sorted(client.scan_iter(count=1000)):
        kind = client.type(key).decode()
        match kind:
            case "string":
                value: Any = _text(client.get(key))
            case "hash":
                value = {_text(name): _text(content) for name, content in sorted(client.hgetall(key).items())}
            case "list":
                value = [_text(item) for item in client.lrange(key, 0, -1)]
            case "set":
                value = sorted(_text(item) for item in client.smembers(key))
            case "zset":
                value = {_text(member): score for member, score in client.zrange(key, 0, -1, withscores=True)}
            case _:
                raise ValueError(f"{key!r} has the type {kind}")
        expiry = client.pttl(key)
        yield _text(key), (kind, None if expiry < 0 else expiry, value)


def _text(content: bytes) -> str:
    return content.decode("latin-1")


def load(path: Path, client: redis.Redis) -> dict[str, Any]:
    """Write the keys of the dump to the empty database of `client`, and return the dump."""
    dump: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    pipe = client.pipeline(transaction=False)
    for name, (kind, expiry, value) in dump["keys"].items():
        key = name.encode("latin-1")
        match kind:
            case "string":
                pipe.set(key, value.encode("latin-1"))
            case "hash":
                pipe.hset(key, mapping={n.encode("latin-1"): content.encode("latin-1") for n, content in value.items()})
            case "list":
                pipe.rpush(key, *(item.encode("latin-1") for item in value))
            case "set":
                pipe.sadd(key, *(item.encode("latin-1") for item in value))
            case "zset":
                pipe.zadd(key, {member.encode("latin-1"): score for member, score in value.items()})
        if expiry is not None:
            pipe.pexpire(key, expiry)
    pipe.execute()
    return dump


if __name__ == "__main__":
    record(Path(sys.argv[1]))
