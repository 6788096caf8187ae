"""Drained workers. On RabbitMQ, a drained worker returns its prefetched messages to the broker, and another worker
executes their runs. An operator can drain a worker with a command or through a gateway."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname

import httpx

from tests.support.clients.operator import Operator
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import LIMIT, eventually


def test_prefetched_runs_of_a_drained_worker_start_on_another_worker(tmp_path: Path) -> None:
    with running_fleet(tmp_path, "rabbitmq", TEST_ALONE="1") as fleet:
        gateway, first = fleet.gateway(), fleet.worker(pool="threads", concurrency=1)
        a2a = Operator(fleet, control_exchange=f"{fleet.queue}-control")

        def until(agent: str, task: dict[str, object], expected_state: str) -> None:
            eventually(lambda: state(read(gateway, agent, task)) == expected_state, what=f"{agent} {expected_state}")

        works = send(gateway, "silent", "600", returnImmediately=True)
        until("silent", works, "WORKING")
        waits = [send(gateway, "echo", "x", returnImmediately=True) for _ in range(3)]
        for task in waits:
            first.wait_for_output(f"a2a.echo[{task['id']}.1] received")
        second = fleet.worker(pool="threads", concurrency=1)

        [remaining_row] = a2a.rows("drain", "--worker", fleet.node_name(first), "--timeout", "0", code=1)

        assert remaining_row["returned"] == 3
        assert remaining_row["running"] == [f"{works['id']}.1"]
        for task in waits:
            until("echo", task, "COMPLETED")
            assert f"run {task['id']}.2 of echo begins" in second.output()
        until("silent", works, "WORKING")
        versions = [row["text"] for row in a2a.rows("doctor", code=1) if row["check"] == "broker"]
        assert versions[0].startswith("reached: RabbitMQ 3.")
        [cancel_row] = a2a.rows("cancel", "--all", "--yes")
        assert cancel_row["outcome"] == "canceled"
        drain_row = a2a.rows("drain", "--all", "--timeout", "30")
        assert [row["worker"] for row in drain_row] == [fleet.node_name(first), fleet.node_name(second)]
        assert {(row["state"], *row["queues"]) for row in drain_row} == {("drained", fleet.queue)}


def test_an_operator_drains_a_worker_through_the_gateway(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        gateway, worker = fleet.gateway(A2A_OPERATORS="*"), fleet.worker(pool="asyncio", concurrency=3)
        node = fleet.node_name(worker)
        api = f"{gateway.url}/operator/v1"
        works = send(gateway, "silent", "600", returnImmediately=True)
        eventually(lambda: state(read(gateway, "silent", works)) == "WORKING", what="the agent works")
        [task] = httpx.get(f"{api}/tasks?phase=running").json()["tasks"]
        assert task["worker"] == node

        drained = httpx.post(f"{api}/workers/{node}:drain", timeout=LIMIT).json()

        assert drained == {"worker": node, "queues": [fleet.queue], "returned": 0}
        [report] = httpx.get(f"{api}/workers", timeout=LIMIT).json()["workers"]
        assert (report["active"], report["slots"], report["drained"]) == (1, 3, [fleet.queue])
        waits = send(gateway, "echo", "x", returnImmediately=True)
        [row] = Operator(fleet).rows("drain", "--worker", node, "--timeout", "0", code=1)
        assert (row["state"], row["running"]) == ("busy", [f"{works['id']}.1"])
        assert state(read(gateway, "echo", waits)) == "SUBMITTED"
        assert httpx.post(f"{api}/workers/{node}:undrain", timeout=LIMIT).json()["queues"] == [fleet.queue]
        eventually(lambda: state(read(gateway, "echo", waits)) == "COMPLETED", what="the worker consumes again")
        [result] = httpx.post(f"{api}/tasks:cancel", json={"tasks": [works["id"]]}).json()["results"]
        assert result["result"] == "requested"
        eventually(lambda: state(read(gateway, "silent", works)) == "CANCELED", what="the agent is stopped")
        unknown = httpx.post(f"{api}/workers/w9@{gethostname()}:drain", timeout=LIMIT)
        assert unknown.status_code == 400
        assert f"worker {node}: worker.drained by an unauthenticated operator: done" in gateway.output()
