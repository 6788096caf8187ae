"""Metrics over HTTP of a gateway with two processes, a worker and a watcher."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from a2a.types import CancelTaskRequest

from a2a_celery.telemetry.names import METRICS
from tests.support.clients import (
    V1,
    Served,
    base_url,
    collect,
    message_json,
    request,
    rest,
    rpc,
    sdk_client,
    until_state,
)
from tests.support.fleet import free_port, running_fleet
from tests.support.posts import DELIVERING, with_config
from tests.support.receiver import receiver
from tests.support.scrapes import Scrape, scrape
from tests.support.waiting import LIMIT, eventually


@dataclass
class Watched(Served):
    """Fleet with the address of a watcher's metrics."""

    watcher: str

    def metrics(self) -> Scrape:
        """Scrape the gateway."""
        return scrape(self.url)

    def becomes(self, wanted: float, name: str, **labels: str) -> Scrape:
        """Wait for a scrape of the gateway with the value `wanted`, and return the scrape. Values of another gateway
        process may be a second old."""
        values: list[float] = []

        def matching_scrape() -> Scrape | None:
            found = self.metrics()
            values.append(found.get(name, **labels))
            return found if values[-1] == wanted else None

        try:
            found = eventually(matching_scrape)
        except AssertionError:
            raise AssertionError(f"{name}{labels} was {list(dict.fromkeys(values))}, never {wanted}") from None
        assert found is not None
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), **DELIVERING) as fleet:
        port = free_port()
        watcher = fleet.start("watcher", "a2a", "watcher", "--metrics-port", str(port))
        gateway = fleet.gateway(workers=2)
        worker = fleet.worker()
        watcher.wait_for_output("watcher started")
        yield Watched(fleet, gateway, worker, f"http://127.0.0.1:{port}")


def test_tasks_are_counted_by_agent_and_outcome_and_their_runs_timed(served: Watched) -> None:
    before = served.metrics()

    for _ in range(3):
        rpc(served.gateway, "SendMessage", message_json("hello"), agent="echo")
    rpc(served.gateway, "SendMessage", message_json("oh"), agent="fail")

    done = before.get("a2a_tasks_ended_total", agent="echo", state="completed")

    after = served.becomes(done + 3, "a2a_tasks_ended_total", agent="echo", state="completed")
    assert after.get("a2a_tasks_ended_total", agent="fail", state="failed") == 1
    assert after.get("a2a_tasks_ended_total", agent="echo", state="failed") == 0
    for name in ("a2a_run_queue_seconds", "a2a_run_seconds", "a2a_run_first_event_seconds"):
        assert after.get(f"{name}_count", agent="echo") - before.get(f"{name}_count", agent="echo") == 3
        assert after.get(f"{name}_bucket", agent="echo", le="30") == after.get(f"{name}_count", agent="echo")
        assert 0 < after.get(f"{name}_sum", agent="echo") < 30


def test_requests_of_all_processes_are_counted(served: Watched) -> None:
    task = rpc(served.gateway, "SendMessage", message_json("hello"), agent="echo")["result"]["task"]
    labels = {"agent": "echo", "operation": "GetTask"}
    before = served.metrics()

    for _ in range(20):  # a new connection for each request, so that either process may respond
        assert rest(served.gateway, "GET", f"/tasks/{task['id']}", agent="echo").status_code == 200
    assert rest(served.gateway, "GET", "/tasks/none", agent="echo").status_code == 404

    counted, missing = "a2a_gateway_requests_total", "TaskNotFoundError"
    served.becomes(before.get(counted, outcome="ok", **labels) + 20, counted, outcome="ok", **labels)
    served.becomes(before.get(counted, outcome=missing, **labels) + 1, counted, outcome=missing, **labels)


async def test_streams_are_open_until_they_are_not_and_their_lag_is_known(served: Watched) -> None:
    before = served.metrics()
    async with httpx.AsyncClient(headers=V1, timeout=LIMIT) as http:
        body = message_json("60")
        streams = [
            http.stream("POST", f"{base_url(served.gateway, 'silent')}/message:stream", json=body) for _ in range(3)
        ]
        opened = [await stream.__aenter__() for stream in streams]
        assert {response.status_code for response in opened} == {200}
        await asyncio.to_thread(served.becomes, 3.0, "a2a_gateway_open_streams", agent="silent")
        for stream in streams:
            await stream.__aexit__(None, None, None)

    await asyncio.to_thread(served.becomes, 0.0, "a2a_gateway_open_streams", agent="silent")
    for task in rest(served.gateway, "GET", "/tasks", agent="silent").json()["tasks"]:  # free the worker's slots
        rpc(served.gateway, "CancelTask", {"id": task["id"]}, agent="silent")
    async with sdk_client(served.gateway, "count") as client:
        await collect(client.send_message(request("10")))
    after = served.metrics()
    assert after.get("a2a_gateway_tail_lag_seconds_count") > before.get("a2a_gateway_tail_lag_seconds_count")
    assert after.get("a2a_gateway_tail_lag_seconds_sum") < 60


async def test_a_cancel_is_timed(served: Watched) -> None:
    """No other test cancels a task of this agent, so the count is exactly 1."""
    async with sdk_client(served.gateway, "pace", streaming=False) as client:
        async for sent in client.send_message(request("1 60", immediately=True)):
            task_id = sent.task.id
        await until_state(client, task_id, "WORKING")
        await client.cancel_task(CancelTaskRequest(id=task_id))

    scraped = await asyncio.to_thread(served.becomes, 1.0, "a2a_cancel_seconds_count", agent="pace")
    assert 0 < scraped.get("a2a_cancel_seconds_sum", agent="pace") < 30


def test_posts_are_counted_by_the_store_and_timed_by_the_watcher(served: Watched) -> None:
    before, counted = served.metrics(), "a2a_webhook_posts_total"
    timed = scrape(served.watcher).get("a2a_watcher_post_seconds_count", outcome="delivered")
    with receiver() as hooks:
        hooks.plan("/hook", [500])
        rpc(served.gateway, "SendMessage", with_config(message_json("x"), hooks.url("/hook")), agent="echo")
        hooks.wait_for("/hook", 5)

        served.becomes(before.get(counted, outcome="delivered") + 4, counted, outcome="delivered")
        served.becomes(before.get(counted, outcome="failed") + 1, counted, outcome="failed")
        served.becomes(0, "a2a_webhooks", state="waiting")
    metrics = scrape(served.watcher)
    assert metrics.get("a2a_watcher_post_seconds_count", outcome="delivered") == timed + 4
    assert metrics.get("a2a_watcher_post_seconds_count", outcome="failed") >= 1


def test_a_watcher_reports_its_scans(served: Watched) -> None:
    first = scrape(served.watcher).get("a2a_watcher_ticks_total", role="recoverer", outcome="ok")

    def looked() -> bool:
        return scrape(served.watcher).get("a2a_watcher_ticks_total", role="recoverer", outcome="ok") > first

    eventually(looked, what="the recoverer looks again")
    assert scrape(served.watcher).get("a2a_watcher_tick_age_seconds", role="recoverer") < 30
    assert httpx.get(f"{served.watcher}/health/live", timeout=LIMIT).status_code == 200
    assert httpx.get(f"{served.watcher}/elsewhere", timeout=LIMIT).status_code == 404


def test_runs_that_wait_and_runs_that_are_lost_are_seen(served: Watched) -> None:
    """This test kills the worker, so it comes after all tests that need the worker."""
    before = served.metrics()
    immediately = {"configuration": {"returnImmediately": True}}
    rpc(served.gateway, "SendMessage", message_json("60") | immediately, agent="silent")
    served.becomes(before.get("a2a_runs", phase="running") + 1, "a2a_runs", phase="running")

    assert served.worker is not None
    served.worker.kill()
    rpc(served.gateway, "SendMessage", message_json("later") | immediately, agent="echo")

    served.becomes(1, "a2a_runs_lost_total", agent="silent", outcome="failed")
    served.becomes(before.get("a2a_dead_letters") + 1, "a2a_dead_letters")
    served.becomes(1, "a2a_runs", phase="queued")
    eventually(lambda: served.metrics().get("a2a_queue_age_seconds", agent="echo") > 1, what="the run's age grows")
    assert served.metrics().get("a2a_queue_age_seconds", agent="silent") == 0


def test_the_documented_metrics_are_exposed(served: Watched) -> None:
    at_gateway = {metric.exposed for metric in METRICS if metric.where != "watcher"}
    at_watcher = {metric.exposed for metric in METRICS if metric.where == "watcher"}

    assert served.metrics().names() == at_gateway
    assert scrape(served.watcher).names() == at_watcher
