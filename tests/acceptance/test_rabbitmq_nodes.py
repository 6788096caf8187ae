"""RabbitMQ that closes the channels of slow consumers, accepts no messages in an alarm, or refuses a node name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, free_port, running_fleet
from tests.support.processes.rabbitmq import rabbitmq_node
from tests.support.store.records import endings_in, log_of, states_in
from tests.support.waiting import eventually
from tests.tiers import at_night


@contextmanager
def fleet_on_a_node(folder: Path, options: str = "", **lines: str) -> Iterator[Fleet]:
    """Run a fleet whose broker is a RabbitMQ node with further `lines` and Erlang `options`."""
    port, node = free_port(), folder / "node"
    lines["listeners.tcp.1"] = f"127.0.0.1:{port}"
    node.mkdir()
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    with rabbitmq_node(node, port, lines, options), running_fleet(folder, CELERY_BROKER_URL=url) as fleet:
        yield fleet


@pytest.mark.parametrize("pool", at_night(["prefork", "threads", "asyncio"], merge=["prefork", "threads"]))
def test_a_worker_goes_on_after_runs_have_waited_too_long_in_it(tmp_path: Path, pool: str) -> None:
    with fleet_on_a_node(tmp_path, "-rabbit channel_tick_interval 1000", consumer_timeout="2000") as fleet:
        gateway, worker = fleet.gateway(), fleet.worker(pool=pool, concurrency=1)
        running = send(gateway, "silent", "12", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", running)) == "WORKING", what="the run has begun")

        waiting = [send(gateway, "echo", str(number), returnImmediately=True) for number in range(2)]

        worker.wait_for_output("delivery acknowledgement on channel")
        for agent, task in [("silent", running), *(("echo", task) for task in waiting)]:
            eventually(lambda a=agent, t=task: state(read(gateway, a, t)) == "COMPLETED", what=f"{agent} ends")
            log = log_of(fleet.redis.store_url, task)
            assert endings_in(log) == ["COMPLETED"]
            assert states_in(log).count("WORKING") == 1
        assert worker.is_running, worker.output()[-3000:]
        assert "Unrecoverable error" not in worker.output()


def test_an_alarm_of_the_broker_is_named(tmp_path: Path) -> None:
    """RabbitMQ accepts connections in a memory alarm, but no messages."""
    lines = {"vm_memory_high_watermark.absolute": "1000000"}
    with fleet_on_a_node(tmp_path, **lines) as fleet:
        gateway = fleet.gateway()
        send(gateway, "echo", returnImmediately=True)
        reason = "the broker did not reply in time: see rabbitmq-diagnostics alarms"
        eventually(lambda: reason in gateway.output(), what="the gateway logs the reason")

        readiness = httpx.get(f"{gateway.url}/health/ready", timeout=30).json()
        findings = fleet.command("a2a", "doctor", "--url", gateway.url).stdout

    assert readiness["broker"] == "RabbitMQ confirmed no message within 1 s: see rabbitmq-diagnostics alarms"
    assert "wrong  broker: RabbitMQ confirmed no message within 3 s: see rabbitmq-diagnostics alarms" in findings
    assert "no worker replies" not in findings


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_second_worker_of_the_same_name_ends_with_one_sentence(tmp_path: Path, broker: str) -> None:
    with running_fleet(tmp_path, broker) as fleet:
        name = f"{fleet.queue}@%h"
        first, second = [fleet.start(f"worker-{n}", "worker", "-n", name, "-P", "solo", "-l", "INFO") for n in range(2)]
        eventually(lambda: not (first.is_running and second.is_running), what="one of the workers ends")
        ended, running = (second, first) if first.is_running else (first, second)
        running.wait_for_output(" ready.")
        findings = fleet.command("a2a", "doctor").stdout

    assert ended.popen.returncode == 1
    assert f"another worker on this broker is named {fleet.queue}@" in ended.output()
    assert "Traceback" not in ended.output()
    assert "No worker of the same name can join" in findings
