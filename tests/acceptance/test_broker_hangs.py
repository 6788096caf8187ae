"""Broker that accepts data but does not respond. Gateways accept messages, and workers execute the runs after the
broker has recovered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.clients.talk import cancel, read, send, state
from tests.support.processes.fleet import RABBITMQ_URL, Fleet, Gateway, running_fleet
from tests.support.processes.proxy import Proxy, proxy
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.store.records import endings_in, log_of
from tests.support.waiting import eventually
from tests.tiers import at_night

pytestmark = pytest.mark.every_cell


SECONDS = {"A2A_REDISPATCH_AFTER": "3", "A2A_LEASE_TTL": "6"}
PUBLISHERS = 4
"""Number of publisher threads of a gateway. A test that sends more messages detects threads that hang."""


@pytest.fixture
def redis_broker(tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path / "broker") as server:
        yield server


GIVEN_UP = "will be published by the watcher"
"""Text that the gateway logs when it gives up publishing a run."""


def send_tasks(gateway: Gateway, number: int) -> list[dict[str, Any]]:
    """Send `number` messages and return their tasks. Fail if the gateway has already given up publishing all of the
    runs when it accepts the last message."""
    count_before = gateway.output().count(GIVEN_UP)
    tasks = [send(gateway, "echo", str(text), returnImmediately=True) for text in range(number)]
    assert gateway.output().count(GIVEN_UP) - count_before < number, "each message waited for the broker"
    return tasks


def complete_once(fleet: Fleet, gateway: Gateway, tasks: list[dict[str, Any]]) -> None:
    """Wait until all tasks have finished, and require that COMPLETED is the only terminal state in each log."""
    for task in tasks:
        eventually(
            lambda t=task: state(read(gateway, "echo", t)) not in ("SUBMITTED", "WORKING"),
            what="the task ends",
        )
        assert endings_in(log_of(fleet.redis.store_url, task)) == ["COMPLETED"]


@pytest.mark.parametrize("pool", at_night(["prefork", "threads"], merge=["prefork"]))
def test_a_redis_that_freezes_and_wakes_up(tmp_path: Path, redis_broker: MortalRedis, pool: str) -> None:
    with running_fleet(tmp_path, CELERY_BROKER_URL=redis_broker.broker_url, **SECONDS) as fleet:
        gateway, worker = fleet.gateway(), fleet.worker(pool=pool)
        fleet.watcher()
        complete_once(fleet, gateway, send_tasks(gateway, PUBLISHERS))
        active_tasks = {agent: send(gateway, agent, "5", returnImmediately=True) for agent in ("silent", "steady")}
        for agent, task in active_tasks.items():
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) == "WORKING", what=f"{agent} has begun")
        prefetched_tasks = send_tasks(gateway, 2)
        for task in prefetched_tasks:
            worker.wait_for_output(f"[{task['id']}.1] received")
        assert redis_broker.process is not None

        redis_broker.process.send_signal(signal.SIGSTOP)
        tasks = send_tasks(gateway, 3 * PUBLISHERS)
        for agent, task in active_tasks.items():
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) == "COMPLETED", what=f"{agent} goes on")
        eventually(
            lambda: gateway.output().count(GIVEN_UP) > PUBLISHERS,
            what="the gateway's threads give up",
        )
        redis_broker.process.send_signal(signal.SIGCONT)

        complete_once(fleet, gateway, prefetched_tasks + tasks)
        complete_once(fleet, gateway, send_tasks(gateway, PUBLISHERS))
        assert worker.is_running


@pytest.mark.nightly
def test_a_worker_s_line_to_redis_that_dies_in_silence(tmp_path: Path, redis_broker: MortalRedis) -> None:
    with (
        proxy(str(redis_broker.home / "redis.sock")) as line,
        running_fleet(tmp_path, CELERY_BROKER_URL=redis_broker.broker_url, **SECONDS) as fleet,
    ):
        gateway = fleet.gateway()
        worker = fleet.worker(pool="prefork", CELERY_BROKER_URL=f"redis://127.0.0.1:{line.port}/1")
        fleet.watcher()  # republishes runs whose messages are lost on the dead connection
        complete_once(fleet, gateway, send_tasks(gateway, 1))

        line.silence()
        line.heal()

        complete_once(fleet, gateway, send_tasks(gateway, PUBLISHERS))
        assert worker.is_running


@pytest.fixture
def line(broker: str, redis_broker: MortalRedis) -> Iterator[tuple[Proxy, str, str]]:
    """Proxy in front of the broker, the broker's URL through the proxy, and the broker's own URL."""
    if broker == "redis":
        with proxy(str(redis_broker.home / "redis.sock")) as through:
            yield through, f"redis://127.0.0.1:{through.port}/1", redis_broker.broker_url
        return
    at = urlsplit(RABBITMQ_URL)
    with proxy((at.hostname or "127.0.0.1", at.port or 5672)) as through:
        credentials = at.netloc.rpartition("@")[0]
        yield through, f"{at.scheme}://{credentials}@127.0.0.1:{through.port}{at.path}", RABBITMQ_URL


@pytest.mark.nightly
def test_publishers_with_silently_dropped_connections(
    tmp_path: Path, broker: str, line: tuple[Proxy, str, str]
) -> None:
    through, address, past = line
    with running_fleet(tmp_path, broker, **SECONDS) as fleet:
        gateway = fleet.gateway(CELERY_BROKER_URL=address)
        fleet.worker(pool="threads", CELERY_BROKER_URL=past)
        complete_once(fleet, gateway, send_tasks(gateway, 2 * PUBLISHERS))

        through.silence()
        tasks = send_tasks(gateway, 3 * PUBLISHERS)
        tasks_to_cancel = send_tasks(gateway, PUBLISHERS + 1)
        assert {state(cancel(gateway, "echo", task)) for task in tasks_to_cancel} == {"CANCELED"}
        eventually(
            lambda: gateway.output().count(GIVEN_UP) > PUBLISHERS,
            what="the gateway's threads give up",
        )
        through.heal()

        # only the gateway publishes, because no watcher runs
        complete_once(fleet, gateway, send_tasks(gateway, PUBLISHERS))
        fleet.watcher(CELERY_BROKER_URL=address)
        complete_once(fleet, gateway, tasks)
