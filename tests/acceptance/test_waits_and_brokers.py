"""Waits of runs and messages to working agents while the broker is unavailable. All runs continue when the broker is
back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from a2a_celery.store import Keys
from tests.support.clients.bindings import message_json, rest
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import RABBITMQ_URL, Fleet, Gateway, running_fleet
from tests.support.processes.proxy import proxy
from tests.support.processes.restarts import mortal_redis
from tests.support.store.records import endings_in, log_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

SECONDS = {"A2A_REDISPATCH_AFTER": "3", "A2A_LEASE_TTL": "6"}
Interruption = tuple[str, Callable[[], None], Callable[[], None]]


@contextmanager
def interruptible(broker: str, folder: Path) -> Iterator[Interruption]:
    """Yield the URL of a broker, and functions that interrupt and restore it.

    Redis is killed and started again. RabbitMQ is shared with other tests, so a proxy closes and refuses connections.
    """
    if broker == "redis":
        with mortal_redis(folder) as server:
            yield server.broker_url, server.die, server.start
        return
    at = urlsplit(RABBITMQ_URL)
    with proxy((at.hostname or "127.0.0.1", at.port or 5672)) as line:
        yield f"amqp://{at.netloc.rpartition('@')[0]}@127.0.0.1:{line.port}{at.path}", line.cut, line.restore


def phase(fleet: Fleet, task: dict[str, Any]) -> str:
    """Return the phase of the task's newest run."""
    with Redis.from_url(fleet.redis.store_url) as redis:
        return (redis.hget(Keys("a2a").task(task["id"]).record, "phase") or b"").decode()


def reach(fleet: Fleet, tasks: dict[str, dict[str, Any]], expected_phase: str) -> None:
    """Wait until the newest runs of all tasks are in the phase `expected_phase`."""
    eventually(
        lambda: {phase(fleet, task) for task in tasks.values()} == {expected_phase},
        what=f"all runs are {expected_phase}",
    )


def approve(gateway: Gateway, task: dict[str, Any], by: str) -> None:
    """Send the signal for which a run waits."""
    body = {"name": "approval", "payload": {"by": by}}
    reply = rest(gateway, "POST", f"/tasks/{task['id']}:signal", body, agent="approval")
    assert (reply.status_code, reply.json()["resumed"]) == (202, True), reply.text


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_runs_that_wait_continue_after_an_interruption_of_the_broker(tmp_path: Path, broker: str) -> None:
    path = tmp_path / "go-on"
    with (
        interruptible(broker, tmp_path / "broker") as (url, interrupt, restore),
        running_fleet(tmp_path, broker, app="tests.support.agents.waits_of_all_kinds", **SECONDS) as fleet,
    ):
        through = {"CELERY_BROKER_URL": url}
        gateway, worker = fleet.gateway(**through), fleet.worker(pool="threads", concurrency=4, **through)
        fleet.watcher(**through)
        messages = {"sleeper": "10", "approval": "600", "calls": f"wait {path}"}
        tasks = {agent: send(gateway, agent, text, returnImmediately=True) for agent, text in messages.items()}
        reach(fleet, tasks, "suspended")

        interrupt()
        approve(gateway, tasks["approval"], "Ann")
        path.touch()
        reach(fleet, tasks, "queued")
        restore()

        eventually(lambda: phase(fleet, tasks["approval"]) == "suspended", what="the second wait")
        approve(gateway, tasks["approval"], "Bob")
        for agent, task in tasks.items():
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) != "WORKING", what=f"{agent} ends")
            assert endings_in(log_of(fleet.redis.store_url, task)) == ["COMPLETED"]
        for agent, text in (("approval", "approved by Ann and Bob"), ("calls", "waited")):
            [artifact] = read(gateway, agent, tasks[agent])["artifacts"]
            assert artifact["parts"][0]["text"] == text
        assert worker.is_running, worker.output()[-3000:]


def say(gateway: Gateway, agent: str, task: dict[str, Any], text: str) -> None:
    """Send a message to a working task."""
    body = message_json(text, taskId=task["id"]) | {"configuration": {"returnImmediately": True}}
    reply = rest(gateway, "POST", "/message:send", body, agent=agent)
    assert reply.status_code == 200, reply.text


def require_result(gateway: Gateway, agent: str, task: dict[str, Any], *texts: str) -> None:
    """Wait until the task has finished, and require that it is COMPLETED and that its artifacts have the texts
    `texts`."""
    eventually(lambda: state(read(gateway, agent, task)) != "WORKING", what=f"{agent} ends")
    ended_task = read(gateway, agent, task)
    assert state(ended_task) == "COMPLETED", ended_task
    assert ["".join(part["text"] for part in artifact["parts"]) for artifact in ended_task["artifacts"]] == list(texts)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_messages_to_working_agents_arrive_during_an_interruption_of_the_broker(tmp_path: Path, broker: str) -> None:
    """Store and pub/sub deliver a message to the current run. A message that begins a turn waits for the broker."""
    env = {**SECONDS, "TEST_FOLDER": str(tmp_path)}
    with (
        interruptible(broker, tmp_path / "broker") as (url, interrupt, restore),
        running_fleet(tmp_path, broker, app="tests.support.agents.steering_agents", **env) as fleet,
    ):
        through = {"CELERY_BROKER_URL": url}
        gateway, worker = fleet.gateway(**through), fleet.worker(pool="threads", concurrency=8, **through)
        fleet.watcher(**through)
        agents = ("listens", "ignores", "yields-to-messages")
        tasks = {agent: send(gateway, agent, "work", returnImmediately=True) for agent in agents}
        reach(fleet, tasks, "running")

        interrupt()
        for text in ("left", "done"):
            say(gateway, "listens", tasks["listens"], text)
        require_result(gateway, "listens", tasks["listens"], "work left done")
        say(gateway, "ignores", tasks["ignores"], "second")
        (tmp_path / f"{tasks['ignores']['id']}.may-end").touch()
        say(gateway, "yields-to-messages", tasks["yields-to-messages"], "finish")
        reach(fleet, {agent: tasks[agent] for agent in ("ignores", "yields-to-messages")}, "queued")
        restore()

        require_result(gateway, "ignores", tasks["ignores"], "work", "second")
        require_result(gateway, "yields-to-messages", tasks["yields-to-messages"], "2 finish")
        for task in tasks.values():
            assert endings_in(log_of(fleet.redis.store_url, task)) == ["COMPLETED"]
        assert worker.is_running, worker.output()[-3000:]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_messages_survive_a_worker_that_is_killed_while_the_broker_is_unavailable(tmp_path: Path, broker: str) -> None:
    env = {**SECONDS, "TEST_FOLDER": str(tmp_path)}
    with (
        interruptible(broker, tmp_path / "broker") as (url, interrupt, restore),
        running_fleet(tmp_path, broker, app="tests.support.agents.steering_agents", **env) as fleet,
    ):
        through = {"CELERY_BROKER_URL": url}
        gateway, worker = fleet.gateway(**through), fleet.worker(**through)
        fleet.watcher(**through)
        task = send(gateway, "listens", "work", returnImmediately=True)
        reach(fleet, {"listens": task}, "running")

        interrupt()
        say(gateway, "listens", task, "left")
        eventually(lambda: "heard left" in str(read(gateway, "listens", task)), what="the message is read")
        worker.kill()
        say(gateway, "listens", task, "right")
        restore()
        fleet.worker(**through)
        say(gateway, "listens", task, "done")

        require_result(gateway, "listens", task, "work left right done")
        assert endings_in(log_of(fleet.redis.store_url, task)) == ["COMPLETED"]
