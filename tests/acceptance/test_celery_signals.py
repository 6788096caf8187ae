"""Celery's signals: receivers translate them into events of tasks, and each end of a run sends those that fit."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskStatusUpdateEvent
from redis import Redis

from a2a_celery.lifecycle.outcomes import (
    AGENT_FAILED,
    AGENT_UNKNOWN,
    CANCELED_BY_OPERATOR,
    MESSAGE_UNREADABLE,
    NOT_BEGUN_IN_TIME,
    WORKER_LOST,
)
from a2a_celery.lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, NAMESPACE, NEXT_ATTEMPT_AT, own_metadata
from a2a_celery.store import Keys
from a2a_celery.store.log.pages import read_log
from tests.support import ROOT
from tests.support.clients import V1
from tests.support.site import Site, open_site, text_of
from tests.support.waiting import LIMIT, eventually

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
POOLS = ("prefork", "threads", "solo", "asyncio")


@dataclass
class Heard:
    """A site, and the file in which its worker logs the signals of runs."""

    site: Site
    log: Path

    def signals_of(self, task_id: str) -> list[str]:
        """The names of the signals of the first run, in their order, without "task_"."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(f"{task_id}.1 ")]


@pytest.fixture(scope="module", params=POOLS)
def heard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Heard]:
    folder = tmp_path_factory.mktemp(request.param)
    log = folder / "signals"
    with open_site(folder, request.param, broker, app="tests.support.signal_log", TEST_SIGNALS=str(log)) as site:
        site.fleet.watcher().wait_for_output("listening for revokes")
        yield Heard(site, log)


def table() -> dict[str, tuple[str, str, str]]:
    """The rows of the page by what became of the run: signals on prefork, signals elsewhere, event."""
    section = PAGE.partition("## Celery's signals and events")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {row[0]: (row[1], row[2], row[3]) for row in rows if row[0] != "the A2A task" and set(row[0]) != {"-"}}


def begin(site: Site, row: str) -> str:
    """Bring about what a row of the table is about. Return the task's id."""
    match row:
        case "COMPLETED":
            return site.send("echo", "hi")
        case "FAILED, by its agent or a time limit":
            return site.send("fail")
        case "FAILED, its process was lost":
            return site.send("ends", "SIGKILL")
        case "REJECTED, by its agent":
            return site.send("refuse")
        case "REJECTED, the worker has no such agent":
            return site.send("ghost", "hi")
        case "INPUT_REQUIRED, AUTH_REQUIRED":
            return site.send("ask")
        case "CANCELED, by its client":
            task_id = site.send("patient", "hi")
            eventually(lambda: site.is_in(task_id, "WORKING"))
            httpx.post(f"{site.gateway.url}/agents/patient/tasks/{task_id}:cancel", headers=V1, timeout=LIMIT)
            return task_id
        case "CANCELED, by an operator while it ran":
            task_id = site.send("silent", "60")
            eventually(lambda: site.is_in(task_id, "WORKING"))
            site.celery.control.revoke(f"{task_id}.1", terminate=True)
            return task_id
        case "REJECTED, expired":
            return expired(site, "hello")
        case "CANCELED, by an operator before it began":
            with site.deaf():
                task_id = site.send("echo", "hello")
                site.revoke(task_id)
            return task_id
    raise AssertionError(row)


def expired(site: Site, message: str) -> str:
    """Send a message that expires before a worker comes to it. Return the task's id."""
    with site.deaf():
        task_id = site.send("perishable", message)
        sent = time.monotonic()
        eventually(lambda: time.monotonic() > sent + 2, what="it expires")
    return task_id


@pytest.mark.every_cell
@pytest.mark.parametrize("row", list(table()))
def test_each_end_sends_what_the_table_says(heard: Heard, row: str, tmp_path: Path) -> None:
    site, (on_prefork, elsewhere, event) = heard.site, table()[row]
    expected = on_prefork if site.pool == "prefork" else elsewhere
    names = [name.removeprefix("task_") for name in re.findall(r"`(task_\w+)`", expected)]
    if "lost" in row and site.pool != "prefork":  # with its worker, which others here need
        require_lost_worker(site, tmp_path, row, names)
        return
    task_id = begin(site, row)

    eventually(lambda: len(heard.signals_of(task_id)) >= len(names), what=f"the worker sends {names}")
    site.celery_says(task_id, event.strip("`").removeprefix("task-"))
    assert site.log(task_id)[-1] in row
    assert Counter(heard.signals_of(task_id)) == Counter(names)
    site.goes_on()


def require_lost_worker(site: Site, folder: Path, row: str, names: list[str]) -> None:
    """Fail unless a worker that is lost with its run has sent these signals, and a watcher ends the run."""
    log, app = folder / "signals", "tests.support.signal_log"
    env = {"app": app, "TEST_SIGNALS": str(log), "A2A_LEASE_TTL": "2"}
    broker = "redis" if site.fleet.broker_url == site.fleet.redis.broker_url else "rabbitmq"
    with open_site(folder, site.pool, broker, **env) as lost:
        task_id = begin(lost, row)
        eventually(lambda: not lost.worker.running, what="the worker is gone")
        lost.fleet.watcher()
        eventually(lambda: lost.is_in(task_id, "FAILED"), what="a watcher ends the run")
        lost.celery_says(task_id, "failed")
        assert lost.log(task_id)[-1] in row
        assert Heard(lost, log).signals_of(task_id) == names


ENDS_FROM_SIGNALS = [
    ("fail", "", "FAILED", AGENT_FAILED),
    ("ends", "SIGKILL", "FAILED", WORKER_LOST),
    ("ghost", "hello", "REJECTED", AGENT_UNKNOWN),
    ("terminated", "60", "CANCELED", CANCELED_BY_OPERATOR),
    ("revoked", "hello", "CANCELED", CANCELED_BY_OPERATOR),
    ("expired", "hello", "REJECTED", NOT_BEGUN_IN_TIME),
    ("unreadable", "hello", "REJECTED", MESSAGE_UNREADABLE),
]
POOLS_WITHOUT = {
    "terminated": ["threads"],  # Celery terminates no thread
    "ends": ["threads", "asyncio"],  # the whole worker is gone: no receiver is left
}
"""By the first word of such a row, the pools on which no run ends like that."""


@pytest.fixture(scope="module")
def receivers_only(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    with open_site(folder, request.param, broker, app="tests.support.receivers_only") as site:
        yield site


@pytest.mark.every_cell
@pytest.mark.parametrize(
    ("receivers_only", "how", "message", "state", "text"),
    [
        pytest.param(pool, *row, id=f"{pool}-{row[0]}")
        for pool in ("prefork", "threads", "asyncio")
        for row in ENDS_FROM_SIGNALS
        if pool not in POOLS_WITHOUT.get(row[0], ())
    ],
    indirect=["receivers_only"],
)
def test_a_receiver_writes_the_end_that_the_run_did_not_write(
    receivers_only: Site, how: str, message: str, state: str, text: str
) -> None:
    site, agent = receivers_only, how
    match how:
        case "terminated":
            agent = "silent"
            task_id = site.send(agent, message)
            eventually(lambda: site.is_in(task_id, "WORKING"))
            site.celery.control.revoke(f"{task_id}.1", terminate=True)
        case "revoked":
            agent = "echo"
            with site.deaf():
                task_id = site.send(agent, message)
                site.revoke(task_id)
        case "expired":
            agent = "perishable"
            task_id = expired(site, message)
        case "unreadable":
            agent = "echo"
            with site.deaf(), site.celery.connection_for_write() as connection:
                task_id = site.send(agent, message)
                eventually(lambda: connection.default_channel.queue_purge(site.fleet.queue), what="its message is gone")
                site.celery.send_task(
                    "a2a.echo",
                    (task_id, 1),
                    task_id=f"{task_id}.1",
                    queue=site.fleet.queue,
                    headers={"expires": "never"},
                )
        case _:
            task_id = site.send(agent, message)

    task = site.ended(agent, task_id)

    assert text_of(task) == text
    assert [kind for kind in site.log(task_id) if kind not in ("SUBMITTED", "WORKING", "artifact")] == [state]


@pytest.fixture(scope="module", params=["prefork", "threads"])
def unreleased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    with open_site(folder, request.param, broker, app="tests.support.unreleased") as site:
        yield site


@pytest.mark.every_cell
def test_a_receiver_writes_the_retry_that_the_run_did_not_write(unreleased: Site) -> None:
    site = unreleased
    task_id = site.send("hours_later", data={})

    eventually(lambda: len(site.log(task_id)) == 3, what="the retry is written")

    assert site.log(task_id) == ["SUBMITTED", "WORKING", "WORKING"]
    [retry] = attempts(site, task_id)
    assert retry.pop(NEXT_ATTEMPT_AT) == retry.pop(NAMESPACE + NEXT_ATTEMPT_AT)
    assert retry == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 4})
    with Redis.from_url(site.fleet.redis.store_url) as redis:
        phase, retried = redis.hmget(Keys("a2a").task(task_id).record, "phase", "retry_state")
        assert (phase, retried) == (b"queued", b"1 1"), "it waits for its next attempt"


@pytest.mark.every_cell
def test_the_next_attempt_writes_no_retry_a_second_time(unreleased: Site) -> None:
    site = unreleased
    task_id = site.send("flaky", data={"succeed_at": 3})

    site.ended("flaky", task_id)

    assert site.log(task_id) == ["SUBMITTED", "WORKING", "WORKING", "WORKING", "artifact", "COMPLETED"]
    assert attempts(site, task_id) == [own_metadata({ATTEMPT: attempt, MAX_ATTEMPTS: 3}) for attempt in (2, 3)]


def attempts(site: Site, task_id: str) -> list[dict[str, Any]]:
    """The metadata of the statuses that are retries."""
    return [
        dict(entry.event.metadata)
        for entry in site.store.run(read_log(Keys("a2a"), task_id, 0)).entries
        if isinstance(entry.event, TaskStatusUpdateEvent) and "attempt" in entry.event.metadata
    ]
