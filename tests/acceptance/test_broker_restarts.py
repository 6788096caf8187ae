"""Restart of the broker. Workers, gateways and watchers recover, and no run is executed twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.restarts import MortalRedis, allow_writes, mortal_redis, refuse_writes, suspend_server
from tests.support.store.records import endings_in, log_of, states_in
from tests.support.waiting import LIMIT, eventually
from tests.tiers import at_night

pytestmark = pytest.mark.every_cell


SECONDS = {"A2A_REDISPATCH_AFTER": "3", "A2A_LEASE_TTL": "6"}


@dataclass
class Site:
    """Fleet with a separate Redis server as its broker. The broker can be killed."""

    fleet: Fleet
    broker: MortalRedis
    gateway: Gateway

    def send(self, agent: str, text: str) -> tuple[str, dict[str, Any]]:
        """Send a message, and return the agent's name and the task without waiting for the task to finish."""
        return agent, send(self.gateway, agent, text, returnImmediately=True)

    def is_in(self, sent_task: tuple[str, dict[str, Any]], *states: str) -> bool:
        """Return True if the task is in one of `states`."""
        return state(read(self.gateway, *sent_task)) in states

    def completes_once(self, sent_task: tuple[str, dict[str, Any]], within: float = LIMIT) -> list[str]:
        """Wait until the task has finished, and require that COMPLETED is the only terminal state in its log. Return
        the states in the log."""
        final_states = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
        eventually(lambda: self.is_in(sent_task, *final_states), within=within, what=f"{sent_task[0]} ends")
        log = log_of(self.fleet.redis.store_url, sent_task[1])
        assert endings_in(log) == ["COMPLETED"]
        return states_in(log)


def has_fetched(worker: Process, sent_task: tuple[str, dict[str, Any]]) -> bool:
    return f"[{sent_task[1]['id']}.1] received" in worker.output()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        mortal_redis(tmp_path / "broker") as broker,
        running_fleet(tmp_path, CELERY_BROKER_URL=broker.broker_url, **SECONDS) as fleet,
    ):
        yield Site(fleet, broker, fleet.gateway())


@pytest.mark.parametrize(
    ("pool", "acks"),
    at_night(
        [(pool, acks) for pool in ("prefork", "threads", "solo") for acks in ("in Redis", "in memory")],
        merge=[("prefork", "in memory"), ("threads", "in Redis")],
    ),
)
def test_a_worker_with_prefetched_messages_survives_a_redis_restart(site: Site, pool: str, acks: str) -> None:
    site.fleet.watcher()
    worker = site.fleet.worker(pool=pool, concurrency=2, A2A_ACK_EMULATION=str(acks == "in Redis"))
    running_tasks = [site.send("silent", "8") for _ in range(1 if pool == "solo" else 2)]
    eventually(lambda: all(site.is_in(task, "WORKING") for task in running_tasks), what="the runs have begun")
    # fewer messages than the worker may prefetch, so that it waits for more and detects the disconnect on two sockets
    prefetched_tasks = [site.send("echo", str(number)) for number in range(4)]
    if pool != "solo":  # a solo worker fetches no message while it executes a run
        eventually(
            lambda: all(has_fetched(worker, task) for task in prefetched_tasks), what="the worker has their messages"
        )

    site.broker.die()
    tasks_during_outage = [site.send("echo", f"while it was away {number}") for number in range(3)]
    site.broker.start()

    for task in (*running_tasks, *prefetched_tasks, *tasks_during_outage):
        assert site.completes_once(task).count("WORKING") == 1
    site.completes_once(site.send("echo", "after"))
    assert worker.is_running, worker.output()[-3000:]


@pytest.mark.parametrize("acks", at_night(["in Redis", "in memory"], merge=["in memory"]))
def test_a_worker_with_prefetched_messages_survives_a_redis_that_refuses_writes(site: Site, acks: str) -> None:
    site.fleet.watcher()
    worker = site.fleet.worker(concurrency=2, A2A_ACK_EMULATION=str(acks == "in Redis"))
    for why, text in (("OOM", "maxmemory"), ("MISCONF", "able to persist")):
        running_tasks = [site.send("silent", "3") for _ in range(2)]
        eventually(lambda tasks=running_tasks: all(site.is_in(task, "WORKING") for task in tasks))
        prefetched_tasks = [site.send("echo", f"{why} {number}") for number in range(2)]
        eventually(
            lambda tasks=prefetched_tasks: all(has_fetched(worker, task) for task in tasks),
            what="it has their messages",
        )

        refuse_writes(site.broker, why)
        if acks == "in Redis" or why == "MISCONF":  # without acknowledgements in Redis, a fetch needs no memory
            eventually(lambda text=text: text in worker.output(), what=f"the worker reports {why}")
        task_during_outage = site.send("echo", f"during {why}")
        allow_writes(site.broker)

        for task in (*running_tasks, *prefetched_tasks, task_during_outage):
            assert site.completes_once(task).count("WORKING") == 1
    assert worker.is_running, worker.output()[-3000:]


@pytest.mark.parametrize("frozen", ["broker", "store"])
def test_workers_stop_while_a_server_does_not_answer(site: Site, frozen: str) -> None:
    workers = [site.fleet.worker(pool=pool, concurrency=2) for pool in ("prefork", "threads")]
    running_tasks = [site.send("silent", "6") for _ in range(6)]
    eventually(lambda: any(site.is_in(task, "WORKING") for task in running_tasks), what="the runs have begun")

    server = site.broker if frozen == "broker" else site.fleet.redis
    with suspend_server(server):
        for worker in workers:
            worker.terminate()
        for worker in workers:
            eventually(lambda w=worker: not w.is_running, what=f"{worker.name} is gone")


def test_a_gateway_under_load_publishes_again_after_a_redis_restart(tmp_path: Path) -> None:
    # the broker is also the result backend: a publisher that subscribed to results would never publish again
    with (
        mortal_redis(tmp_path / "broker") as broker,
        running_fleet(tmp_path, CELERY_BROKER_URL=broker.broker_url, **SECONDS) as fleet,
    ):
        backend = {"CELERY_RESULT_BACKEND": broker.broker_url.replace("virtual_host=1", "virtual_host=2")}
        site = Site(fleet, broker, fleet.gateway(**backend))
        fleet.worker(pool="threads", concurrency=4, **backend)
        with load(site) as accepted_tasks:
            eventually(lambda: len(accepted_tasks) >= 40, what="messages flow")
            broker.die()
            count_before_outage = len(accepted_tasks)
            eventually(lambda: len(accepted_tasks) >= count_before_outage + 40, what="messages are accepted")
            broker.start()
            count_after_outage = len(accepted_tasks)
            eventually(lambda: len(accepted_tasks) >= count_after_outage + 40, what="messages flow")
        # no watcher runs yet, so only the gateway publishes
        for number in range(8):
            site.completes_once(site.send("echo", f"after {number}"))
        fleet.watcher()

        for task in accepted_tasks:
            assert site.completes_once(task).count("WORKING") == 1
        assert "Retry limit exceeded" not in fleet.logs()


@contextmanager
def load(site: Site, senders: int = 4) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Send messages from several threads until the block ends. Yield the growing list of accepted messages."""
    accepted_tasks: list[tuple[str, dict[str, Any]]] = []
    over = Event()

    def send_on() -> None:
        while not over.is_set():
            accepted_tasks.append(site.send("echo", str(len(accepted_tasks))))
            over.wait(0.05)

    with ThreadPoolExecutor(senders) as pool:
        send_tasks = [pool.submit(send_on) for _ in range(senders)]
        try:
            yield accepted_tasks
        finally:
            over.set()
    for sender in send_tasks:
        sender.result()
