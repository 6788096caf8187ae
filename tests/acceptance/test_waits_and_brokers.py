"""Runs that wait for a time, a signal or a child continue after their broker was unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from a2a_celery.store import Keys
from tests.support.clients import rest
from tests.support.fleet import RABBITMQ_URL, Fleet, Gateway, running_fleet
from tests.support.proxy import proxy
from tests.support.records import endings_in, log_of
from tests.support.restarts import mortal_redis
from tests.support.talk import read, send, state
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

SECONDS = {"A2A_REDISPATCH_AFTER": "3", "A2A_LEASE_TTL": "6"}
Interruption = tuple[str, Callable[[], None], Callable[[], None]]


@contextmanager
def interruptible(broker: str, folder: Path) -> Iterator[Interruption]:
    """The URL of a broker that only this test uses, and functions that interrupt and restore it.

    Redis is killed and started again. The connections to RabbitMQ are closed and refused, because other tests use it.
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


def reach(fleet: Fleet, tasks: dict[str, dict[str, Any]], wanted: str) -> None:
    """Wait until the newest runs of all tasks are in a phase."""
    eventually(lambda: {phase(fleet, task) for task in tasks.values()} == {wanted}, what=f"all runs are {wanted}")


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
        running_fleet(tmp_path, broker, app="tests.support.waits_of_all_kinds", **SECONDS) as fleet,
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
        assert worker.running, worker.output()[-3000:]
