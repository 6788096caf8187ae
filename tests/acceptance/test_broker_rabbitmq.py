"""Interruption of RabbitMQ, simulated by closed and refused connections."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import RABBITMQ_URL, running_fleet
from tests.support.processes.proxy import proxy
from tests.support.store.records import endings_in, log_of, states_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_cell

SECONDS = {"A2A_REDISPATCH_AFTER": "3", "A2A_LEASE_TTL": "6"}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_workers_and_gateways_go_on_and_nothing_runs_twice(tmp_path: Path, broker: str, pool: str) -> None:
    at = urlsplit(RABBITMQ_URL)
    with proxy((at.hostname or "127.0.0.1", at.port or 5672)) as line, running_fleet(tmp_path, broker) as fleet:
        through = {"CELERY_BROKER_URL": f"amqp://{at.netloc.rpartition('@')[0]}@127.0.0.1:{line.port}{at.path}"}
        gateway, worker = fleet.gateway(**through, **SECONDS), fleet.worker(pool=pool, **through, **SECONDS)
        fleet.watcher(**through, **SECONDS)
        running_tasks = [("silent", send(gateway, "silent", "5", returnImmediately=True))]
        eventually(lambda: state(read(gateway, *running_tasks[0])) == "WORKING", what="the run has begun")
        prefetched_tasks = [("echo", send(gateway, "echo", str(number), returnImmediately=True)) for number in range(6)]

        line.cut()
        tasks_during_outage = [("echo", send(gateway, "echo", "meanwhile", returnImmediately=True)) for _ in range(6)]
        eventually(lambda: "published by the watcher" in gateway.output(), what="it is not published")
        line.restore()

        tasks_after_outage = [("echo", send(gateway, "echo", "after", returnImmediately=True)) for _ in range(6)]
        for agent, task in running_tasks + prefetched_tasks + tasks_during_outage + tasks_after_outage:
            eventually(
                lambda a=agent, t=task: state(read(gateway, a, t)) not in ("SUBMITTED", "WORKING"),
                what=f"{agent} ends",
            )
            log = log_of(fleet.redis.store_url, task)
            assert endings_in(log) == ["COMPLETED"]
            assert states_in(log).count("WORKING") == 1
        assert worker.is_running, worker.output()[-3000:]
