"""Metrics over HTTP of a gateway with two processes, a worker and a watcher."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from a2a.types import CancelTaskRequest

from a2a_celery.telemetry.names import METRICS
from tests.support.clients.bindings import (
    V1,
    ServedFleet,
    base_url,
    collect,
    message_json,
    request,
    rest,
    rpc,
    sdk_client,
    wait_for_state,
)
from tests.support.processes.fleet import free_port, running_fleet
from tests.support.receivers.posts import DELIVERING, body_with_config
from tests.support.receivers.receiver import receiver
from tests.support.receivers.scrapes import Scrape, scrape
from tests.support.waiting import LIMIT, eventually


@dataclass
class WatchedFleet(ServedFleet):
    """Fleet with the address of a watcher's metrics."""

    watcher: str

    def metrics(self) -> Scrape:
        """Scrape the gateway."""
        return scrape(self.url)

    def becomes(self, value: float, name: str, **labels: str) -> Scrape:
        """Wait for a scrape of the gateway with the value `value`, and return the scrape. Values of the other
        gateway process may be a second old."""
        values: list[float] = []

        def matching_scrape() -> Scrape | None:
            metrics = self.metrics()
            values.append(metrics.get(name, **labels))
            return metrics if values[-1] == value else None

        try:
            metrics = eventually(matching_scrape)
        except AssertionError:
            raise AssertionError(f"{name}{labels} was {list(dict.fromkeys(values))}, never {value}") from None
        assert metrics is not None
        return metrics


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), **DELIVERING) as fleet:
        port = free_port()
        watcher = fleet.start("watcher", "a2a", "watcher", "--metrics-port", str(port))
        gateway = fleet.gateway(workers=2)
        worker = fleet.worker()
        watcher.wait_for_output("watcher started")
        yield WatchedFleet(fleet, gateway, worker, f"http://127.0.0.1:{port}")


def test_tasks_are_counted_by_agent_and_outcome_and_their_runs_timed(served_fleet: WatchedFleet) -> None:
    metrics_before = served_fleet.metrics()

    for _ in range(3):
        rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="echo")
    rpc(served_fleet.gateway, "SendMessage", message_json("oh"), agent="fail")

    completed_before = metrics_before.get("a2a_tasks_ended_total", agent="echo", state="completed")

    metrics_after = served_fleet.becomes(completed_before + 3, "a2a_tasks_ended_total", agent="echo", state="completed")
    assert metrics_after.get("a2a_tasks_ended_total", agent="fail", state="failed") == 1
    assert metrics_after.get("a2a_tasks_ended_total", agent="echo", state="failed") == 0
    for name in ("a2a_run_queue_seconds", "a2a_run_seconds", "a2a_run_first_event_seconds"):
        assert metrics_after.get(f"{name}_count", agent="echo") - metrics_before.get(f"{name}_count", agent="echo") == 3
        assert metrics_after.get(f"{name}_bucket", agent="echo", le="30") == metrics_after.get(
            f"{name}_count", agent="echo"
        )
        assert 0 < metrics_after.get(f"{name}_sum", agent="echo") < 30


def test_requests_of_all_processes_are_counted(served_fleet: WatchedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="echo")["result"]["task"]
    labels = {"agent": "echo", "operation": "GetTask"}
    metrics_before = served_fleet.metrics()

    for _ in range(20):  # a new connection for each request, so that either process may respond
        assert rest(served_fleet.gateway, "GET", f"/tasks/{task['id']}", agent="echo").status_code == 200
    assert rest(served_fleet.gateway, "GET", "/tasks/none", agent="echo").status_code == 404

    counter, error_name = "a2a_gateway_requests_total", "TaskNotFoundError"
    served_fleet.becomes(metrics_before.get(counter, outcome="ok", **labels) + 20, counter, outcome="ok", **labels)
    served_fleet.becomes(
        metrics_before.get(counter, outcome=error_name, **labels) + 1, counter, outcome=error_name, **labels
    )


async def test_streams_are_open_until_they_are_not_and_their_lag_is_known(served_fleet: WatchedFleet) -> None:
    metrics_before = served_fleet.metrics()
    async with httpx.AsyncClient(headers=V1, timeout=LIMIT) as http:
        body = message_json("60")
        streams = [
            http.stream("POST", f"{base_url(served_fleet.gateway, 'silent')}/message:stream", json=body)
            for _ in range(3)
        ]
        open_streams = [await stream.__aenter__() for stream in streams]
        assert {response.status_code for response in open_streams} == {200}
        await asyncio.to_thread(served_fleet.becomes, 3.0, "a2a_gateway_open_streams", agent="silent")
        for stream in streams:
            await stream.__aexit__(None, None, None)

    await asyncio.to_thread(served_fleet.becomes, 0.0, "a2a_gateway_open_streams", agent="silent")
    for task in rest(served_fleet.gateway, "GET", "/tasks", agent="silent").json()["tasks"]:  # free the worker's slots
        rpc(served_fleet.gateway, "CancelTask", {"id": task["id"]}, agent="silent")
    async with sdk_client(served_fleet.gateway, "count") as client:
        await collect(client.send_message(request("10")))
    metrics_after = served_fleet.metrics()
    assert metrics_after.get("a2a_gateway_tail_lag_seconds_count") > metrics_before.get(
        "a2a_gateway_tail_lag_seconds_count"
    )
    assert metrics_after.get("a2a_gateway_tail_lag_seconds_sum") < 60


async def test_a_cancel_is_timed(served_fleet: WatchedFleet) -> None:
    """No other test cancels a task of this agent, so the count is exactly 1."""
    async with sdk_client(served_fleet.gateway, "pace", streaming=False) as client:
        async for response in client.send_message(request("1 60", immediately=True)):
            task_id = response.task.id
        await wait_for_state(client, task_id, "WORKING")
        await client.cancel_task(CancelTaskRequest(id=task_id))

    metrics = await asyncio.to_thread(served_fleet.becomes, 1.0, "a2a_cancel_seconds_count", agent="pace")
    assert 0 < metrics.get("a2a_cancel_seconds_sum", agent="pace") < 30


def test_posts_are_counted_by_the_store_and_timed_by_the_watcher(served_fleet: WatchedFleet) -> None:
    metrics_before, counter = served_fleet.metrics(), "a2a_webhook_posts_total"
    timed_posts = scrape(served_fleet.watcher).get("a2a_watcher_post_seconds_count", outcome="delivered")
    with receiver() as hooks:
        hooks.plan("/hook", [500])
        rpc(served_fleet.gateway, "SendMessage", body_with_config(message_json("x"), hooks.url("/hook")), agent="echo")
        hooks.wait_for("/hook", 5)

        served_fleet.becomes(metrics_before.get(counter, outcome="delivered") + 4, counter, outcome="delivered")
        served_fleet.becomes(metrics_before.get(counter, outcome="failed") + 1, counter, outcome="failed")
        served_fleet.becomes(0, "a2a_webhooks", state="waiting")
    metrics = scrape(served_fleet.watcher)
    assert metrics.get("a2a_watcher_post_seconds_count", outcome="delivered") == timed_posts + 4
    assert metrics.get("a2a_watcher_post_seconds_count", outcome="failed") >= 1


def test_a_watcher_reports_its_scans(served_fleet: WatchedFleet) -> None:
    first = scrape(served_fleet.watcher).get("a2a_watcher_ticks_total", role="recoverer", outcome="ok")

    def has_looked() -> bool:
        return scrape(served_fleet.watcher).get("a2a_watcher_ticks_total", role="recoverer", outcome="ok") > first

    eventually(has_looked, what="the recoverer polls again")
    assert scrape(served_fleet.watcher).get("a2a_watcher_tick_age_seconds", role="recoverer") < 30
    assert httpx.get(f"{served_fleet.watcher}/health/live", timeout=LIMIT).status_code == 200
    assert httpx.get(f"{served_fleet.watcher}/elsewhere", timeout=LIMIT).status_code == 404


def test_runs_that_wait_and_runs_that_are_lost_are_seen(served_fleet: WatchedFleet) -> None:
    """This test kills the worker, so it comes after all tests that need the worker."""
    metrics_before = served_fleet.metrics()
    immediately = {"configuration": {"returnImmediately": True}}
    rpc(served_fleet.gateway, "SendMessage", message_json("60") | immediately, agent="silent")
    served_fleet.becomes(metrics_before.get("a2a_runs", phase="running") + 1, "a2a_runs", phase="running")

    assert served_fleet.worker is not None
    served_fleet.worker.kill()
    rpc(served_fleet.gateway, "SendMessage", message_json("later") | immediately, agent="echo")

    served_fleet.becomes(1, "a2a_runs_lost_total", agent="silent", outcome="failed")
    served_fleet.becomes(metrics_before.get("a2a_dead_letters") + 1, "a2a_dead_letters")
    served_fleet.becomes(1, "a2a_runs", phase="queued")
    eventually(
        lambda: served_fleet.metrics().get("a2a_queue_age_seconds", agent="echo") > 1, what="the run's age grows"
    )
    assert served_fleet.metrics().get("a2a_queue_age_seconds", agent="silent") == 0


def test_the_documented_metrics_are_exposed(served_fleet: WatchedFleet) -> None:
    gateway_metrics = {metric.exposed for metric in METRICS if metric.where != "watcher"}
    watcher_metrics = {metric.exposed for metric in METRICS if metric.where == "watcher"}

    assert served_fleet.metrics().names() == gateway_metrics
    assert scrape(served_fleet.watcher).names() == watcher_metrics
