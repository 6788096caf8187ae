"""Sleeps of agents after restarts of every process, the store and the broker. Each sleep ends within a second of its
time.

Times are measured by the store's clock. The time that a plain message needs from the gateway to its worker at the same
moment is subtracted, so that a slow machine does not count as a late timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Task, TaskStatusUpdateEvent
from redis import Redis

from a2a_celery.lifecycle.states import WORKING
from a2a_celery.store import Keys
from tests.acceptance.test_waits_and_brokers import interruptible
from tests.support.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.records import log_of
from tests.support.restarts import MortalRedis, mortal_redis
from tests.support.talk import read, send, state
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.each_kind

KEYS = Keys("a2a")
TIMERS = 6
HOUR = 3600
PRECISION = 1.0
"""Seconds after its due time within which a sleep must end, in addition to the time that a plain message needs."""


@dataclass
class Site:
    """Fleet whose store and broker can be interrupted."""

    fleet: Fleet
    store: MortalRedis
    gateway: Gateway
    processes: list[Process]
    interrupt: Callable[[], None]
    restore: Callable[[], None]
    messages: list[dict[str, Any]] = field(default_factory=list)

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
        """Send a plain message for comparison. Return True if the sleeper's task is COMPLETED."""
        self.messages.append(send(self.gateway, "echo", "now", returnImmediately=True))
        return state(read(self.gateway, "sleeper", {"id": task_id})) == "COMPLETED"

    def begun_at(self, task: dict[str, Any]) -> tuple[float, float]:
        """Return the times of the task's creation and of its newest run's claim, in seconds."""
        log = [entry.event for entry in log_of(self.store.store_url, task)]
        [created_at] = [event.status.timestamp for event in log if isinstance(event, Task)]
        working_statuses = [e.status for e in log if isinstance(e, TaskStatusUpdateEvent) and e.status.state == WORKING]
        return created_at.ToMicroseconds() / 1e6, working_statuses[-1].timestamp.ToMicroseconds() / 1e6

    def delay_of_a_message(self) -> float:
        """Return the longest time between the creation and the claim of a plain message, in seconds."""
        for task in self.messages:
            eventually(lambda t=task: state(read(self.gateway, "echo", t)) == "COMPLETED", what="a message is answered")
        return max(begun_at - created_at for created_at, begun_at in map(self.begun_at, self.messages))


@contextmanager
def site(folder: Path, broker: str) -> Iterator[Site]:
    """Run a fleet with a gateway, a store that can be killed, and a broker that can be interrupted."""
    with mortal_redis(folder / "store") as store, interruptible(broker, folder / "broker") as (url, interrupt, restore):
        env = {"A2A_STORE_URL": store.store_url, "CELERY_BROKER_URL": url, "A2A_REDISPATCH_AFTER": "3"}
        with running_fleet(folder, broker, app="tests.support.suspended_agents", **env) as fleet:
            yield Site(fleet, store, fleet.gateway(), [], interrupt, restore)


@pytest.mark.parametrize("server_name", ["everything", "store and broker"])
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_sleeps_end_at_their_time_after_restarts(tmp_path: Path, broker: str, server_name: str) -> None:
    with site(tmp_path, broker) as system:
        system.start()
        tasks = [send(system.gateway, "sleeper", str(HOUR), returnImmediately=True) for _ in range(TIMERS)]
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
        first, *others = due_before
        system.bring_forward([first], 0)
        eventually(lambda: system.is_ended(first.partition(".")[0]), what="all processes work again", every=0.1)
        system.messages.clear()
        due = system.bring_forward(others, 2)
        for name in others:
            eventually(lambda n=name: system.is_ended(n.partition(".")[0]), what="a sleep ends", every=0.1)

        delay = system.delay_of_a_message()
        delays = [system.begun_at(task)[1] - due[f"{task['id']}.2"] / 1e6 for task in tasks if f"{task['id']}.2" in due]
        assert min(delays) > -0.001, delays
        assert max(delays) < PRECISION + delay, (delays, delay)
        print(f"late {[round(seconds, 3) for seconds in delays]}, a plain message {delay:.3f} s")
