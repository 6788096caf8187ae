"""Sleeps of agents after restarts of every process, the store and the broker. A restart changes no time, and no sleep
ends before its time, according to the store's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from a2a.types import TaskStatusUpdateEvent
from redis import Redis

from a2a_celery.lifecycle.states import WORKING
from a2a_celery.store import Keys
from tests.acceptance.test_waits_and_brokers import interruptible
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.store.records import log_of
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.each_kind

KEYS = Keys("a2a")
TIMERS = 6
HOUR = 3600


@dataclass
class Site:
    """Fleet whose store and broker can be interrupted."""

    fleet: Fleet
    store: MortalRedis
    gateway: Gateway
    processes: list[Process]
    interrupt: Callable[[], None]
    restore: Callable[[], None]

    def start(self) -> None:
        """Start a worker and a watcher."""
        self.processes = [self.fleet.worker(pool="threads", concurrency=8), self.fleet.watcher()]

    def due_times(self) -> dict[str, float]:
        """Return the due time of each suspended run, in µs of the store's clock."""
        with Redis.from_url(self.store.store_url) as redis:
            return {name.decode(): due for name, due in redis.zrange(KEYS.suspended, 0, -1, withscores=True)}

    def bring_forward(self, names: list[str], seconds: float) -> dict[str, float]:
        """Make the suspended runs due in `seconds`, at intervals of a quarter of a second. Return their times."""
        with Redis.from_url(self.store.store_url) as redis:
            whole_seconds, micros = redis.time()
            now_us = whole_seconds * 1_000_000 + micros
            due = {name: now_us + (seconds + number / 4) * 1_000_000 for number, name in enumerate(names)}
            redis.zadd(KEYS.suspended, due, xx=True)
        return due

    def is_ready(self) -> bool:
        """Return True if the gateway reaches store and broker."""
        return httpx.get(f"{self.gateway.url}/health/ready", timeout=LIMIT).status_code == 200

    def is_ended(self, task_id: str) -> bool:
        """Return True if the sleeper's task is COMPLETED."""
        return state(read(self.gateway, "sleeper", {"id": task_id})) == "COMPLETED"

    def claimed_at(self, task_id: str) -> float:
        """Return the time of the claim of the task's newest run, in µs of the store's clock."""
        events = [entry.event for entry in log_of(self.store.store_url, {"id": task_id})]
        statuses = [event.status for event in events if isinstance(event, TaskStatusUpdateEvent)]
        return [status.timestamp.ToMicroseconds() for status in statuses if status.state == WORKING][-1]


@contextmanager
def site(folder: Path, broker: str) -> Iterator[Site]:
    """Run a fleet with a gateway, a store that can be killed, and a broker that can be interrupted."""
    with mortal_redis(folder / "store") as store, interruptible(broker, folder / "broker") as (url, interrupt, restore):
        env = {"A2A_STORE_URL": store.store_url, "CELERY_BROKER_URL": url, "A2A_REDISPATCH_AFTER": "3"}
        with running_fleet(folder, broker, app="tests.support.agents.suspended_agents", **env) as fleet:
            yield Site(fleet, store, fleet.gateway(), [], interrupt, restore)


@pytest.mark.parametrize("server_name", ["everything", "store and broker"])
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_sleeps_end_after_restarts_and_not_before_their_time(tmp_path: Path, broker: str, server_name: str) -> None:
    with site(tmp_path, broker) as system:
        system.start()
        for _ in range(TIMERS):
            send(system.gateway, "sleeper", str(HOUR), returnImmediately=True)
        eventually(lambda: len(system.due_times()) == TIMERS, what="all sleep")
        due_before = system.due_times()

        if server_name == "everything":
            for process in (system.gateway, *system.processes):
                process.kill()
        system.interrupt()
        system.store.die()
        system.store.start()
        system.restore()
        if server_name == "everything":
            system.gateway = system.fleet.restart_gateway(system.gateway)
            system.start()

        assert system.due_times() == due_before, "a restart changes no time"
        eventually(system.is_ready, what="the gateway is ready")
        due = system.bring_forward(list(due_before), 2)
        for run in due:
            eventually(lambda n=run: system.is_ended(n.partition(".")[0]), what="a sleep ends", every=0.1)

        assert [run for run, due_us in due.items() if system.claimed_at(run.partition(".")[0]) < due_us] == []
