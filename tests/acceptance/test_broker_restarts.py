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

from tests.support.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.records import endings_in, log_of, states_in
from tests.support.restarts import MortalRedis, allow_writes, mortal_redis, refuse_writes, stopped
from tests.support.talk import read, send, state
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

    def sent(self, agent: str, text: str) -> tuple[str, dict[str, Any]]:
        """Send a message, and return the agent's name and the task without waiting for the task to finish."""
        return agent, send(self.gateway, agent, text, returnImmediately=True)

    def is_in(self, sent: tuple[str, dict[str, Any]], *states: str) -> bool:
        """Return whether the task is in one of `states`."""
        return state(read(self.gateway, *sent)) in states

    def completes_once(self, sent: tuple[str, dict[str, Any]], within: float = LIMIT) -> list[str]:
        """Wait until the task has finished, and require that COMPLETED is the only terminal state in its log. Return
        the states in the log."""
        ended = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
        eventually(lambda: self.is_in(sent, *ended), within=within, what=f"{sent[0]} ends")
        log = log_of(self.fleet.redis.store_url, sent[1])
        assert endings_in(log) == ["COMPLETED"]
        return states_in(log)


def has_fetched(worker: Process, sent: tuple[str, dict[str, Any]]) -> bool:
    return f"[{sent[1]['id']}.1] received" in worker.output()


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
def test_a_worker_with_messages_in_hand_survives_a_redis_restart(site: Site, pool: str, acks: str) -> None:
    site.fleet.watcher()
    worker = site.fleet.worker(pool=pool, concurrency=2, A2A_ACK_EMULATION=str(acks == "in Redis"))
    running = [site.sent("silent", "8") for _ in range(1 if pool == "solo" else 2)]
    eventually(lambda: all(site.is_in(task, "WORKING") for task in running), what="they run")
    # fewer messages than the worker may prefetch, so that it waits for more and detects the disconnect on two sockets
    in_hand = [site.sent("echo", str(number)) for number in range(4)]
    if pool != "solo":  # a solo worker fetches no message while it executes a run
        eventually(lambda: all(has_fetched(worker, task) for task in in_hand), what="the worker has their messages")

    site.broker.die()
    meanwhile = [site.sent("echo", f"while it was away {number}") for number in range(3)]
    site.broker.start()

    for task in (*running, *in_hand, *meanwhile):
        assert site.completes_once(task).count("WORKING") == 1
    site.completes_once(site.sent("echo", "after"))
    assert worker.running, worker.output()[-3000:]


@pytest.mark.parametrize("acks", at_night(["in Redis", "in memory"], merge=["in memory"]))
def test_a_worker_with_messages_in_hand_survives_a_redis_that_refuses_writes(site: Site, acks: str) -> None:
    site.fleet.watcher()
    worker = site.fleet.worker(concurrency=2, A2A_ACK_EMULATION=str(acks == "in Redis"))
    for why, text in (("OOM", "maxmemory"), ("MISCONF", "able to persist")):
        running = [site.sent("silent", "3") for _ in range(2)]
        eventually(lambda tasks=running: all(site.is_in(task, "WORKING") for task in tasks))
        in_hand = [site.sent("echo", f"{why} {number}") for number in range(2)]
        eventually(lambda tasks=in_hand: all(has_fetched(worker, task) for task in tasks), what="it has their messages")

        refuse_writes(site.broker, why)
        if acks == "in Redis" or why == "MISCONF":  # without acknowledgements in Redis, a fetch needs no memory
            eventually(lambda text=text: text in worker.output(), what=f"the worker reports {why}")
        meanwhile = site.sent("echo", f"during {why}")
        allow_writes(site.broker)

        for task in (*running, *in_hand, meanwhile):
            assert site.completes_once(task).count("WORKING") == 1
    assert worker.running, worker.output()[-3000:]


@pytest.mark.parametrize("frozen", ["broker", "store"])
def test_workers_stop_while_a_server_does_not_answer(site: Site, frozen: str) -> None:
    workers = [site.fleet.worker(pool=pool, concurrency=2) for pool in ("prefork", "threads")]
    running = [site.sent("silent", "6") for _ in range(6)]
    eventually(lambda: any(site.is_in(task, "WORKING") for task in running), what="they run")

    server = site.broker if frozen == "broker" else site.fleet.redis
    with stopped(server):
        for worker in workers:
            worker.terminate()
        for worker in workers:
            eventually(lambda w=worker: not w.running, what=f"{worker.name} is gone")


def test_a_gateway_under_load_publishes_again_after_a_redis_restart(tmp_path: Path) -> None:
    # the broker is also the result backend: a publisher that subscribed to results would never publish again
    with (
        mortal_redis(tmp_path / "broker") as broker,
        running_fleet(tmp_path, CELERY_BROKER_URL=broker.broker_url, **SECONDS) as fleet,
    ):
        backend = {"CELERY_RESULT_BACKEND": broker.broker_url.replace("virtual_host=1", "virtual_host=2")}
        site = Site(fleet, broker, fleet.gateway(**backend))
        fleet.worker(pool="threads", concurrency=4, **backend)
        with load(site) as accepted:
            eventually(lambda: len(accepted) >= 40, what="messages flow")
            broker.die()
            at_its_death = len(accepted)
            eventually(lambda: len(accepted) >= at_its_death + 40, what="messages are accepted")
            broker.start()
            at_its_return = len(accepted)
            eventually(lambda: len(accepted) >= at_its_return + 40, what="messages flow")
        # no watcher runs yet, so only the gateway publishes
        for number in range(8):
            site.completes_once(site.sent("echo", f"after {number}"))
        fleet.watcher()

        for task in accepted:
            assert site.completes_once(task).count("WORKING") == 1
        assert "Retry limit exceeded" not in fleet.logs()


@contextmanager
def load(site: Site, senders: int = 4) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Send messages from several threads until the block ends. Yield the growing list of accepted messages."""
    accepted: list[tuple[str, dict[str, Any]]] = []
    over = Event()

    def send_on() -> None:
        while not over.is_set():
            accepted.append(site.sent("echo", str(len(accepted))))
            over.wait(0.05)

    with ThreadPoolExecutor(senders) as pool:
        sending = [pool.submit(send_on) for _ in range(senders)]
        try:
            yield accepted
        finally:
            over.set()
    for sender in sending:
        sender.result()
