"""Sentry in workers: the events of a run have the scope of the run, and a failure is one event, on each pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

TENANTS = ("acme", "umbrella")


def summary(event: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that depend on the run."""
    tags = event.get("tags", {})
    crumbs = event.get("breadcrumbs", {}).get("values", [])
    return {
        "user": event.get("user", {}).get("id"),
        "tenant": tags.get("tenant"),
        "task": tags.get("celery_task_id"),
        "transaction": event.get("transaction"),
        "breadcrumbs": [crumb["message"] for crumb in crumbs if crumb["category"] == "test"],
    }


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_the_events_of_a_failed_run_are_its_own(tmp_path: Path, pool: str) -> None:
    with running_fleet(tmp_path, app="tests.support.agents.sentry_agents", TEST_FOLDER=str(tmp_path)) as fleet:
        gateway = fleet.gateway()
        fleet.worker(pool=pool, concurrency=3, SENTRY_ENVIRONMENT="test")
        tasks = {tenant: send(gateway, "marked", tenant, returnImmediately=True) for tenant in TENANTS}
        for task in tasks.values():
            eventually(lambda t=task: "message" in read(gateway, "marked", t)["status"], what="both agents work")
        unmarked_task = send(gateway, "unmarked")
        (tmp_path / "go").touch()
        for task in tasks.values():
            eventually(lambda t=task: state(read(gateway, "marked", t)) == "FAILED", what="both agents fail")
        native_task = send(gateway, "native", "initech")
        fleet.processes[1].stop()  # the processes write all items

        items = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]

    def expected(task: dict[str, Any], name: str, tenant: str | None) -> dict[str, Any]:
        fields = {"user": tenant, "tenant": tenant, "task": f"{task['id']}.1", "transaction": name}
        return {**fields, "breadcrumbs": [] if tenant is None else [tenant]}

    by_task = {
        f"{task['id']}.1": expected(task, name, tenant)
        for task, name, tenant in (
            (tasks["acme"], "a2a.marked", "acme"),
            (tasks["umbrella"], "a2a.marked", "umbrella"),
            (unmarked_task, "a2a.unmarked", None),
            (native_task, "tests.support.agents.sentry_agents.native", "initech"),
        )
    }
    failures = [summary(item) for item in items if item.get("type") != "transaction"]
    assert sorted(failures, key=str) == sorted(by_task.values(), key=str)
    transactions = [summary(item) for item in items if item.get("type") == "transaction"]
    names = sorted((item["task"], item["transaction"]) for item in transactions if item["task"] is not None)
    assert names == sorted((task, fields["transaction"]) for task, fields in by_task.items())
