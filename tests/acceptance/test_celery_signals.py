"""Celery signals. Receivers translate the signals into task events, and Celery sends the documented signals for each
outcome of a run."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from tests.support.clients.bindings import rest
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")


@dataclass
class SignalLog:
    """System under test, and the file in which its worker logs the signals of runs."""

    system: SystemUnderTest
    log: Path

    def signals_of(self, task_id: str) -> list[str]:
        """Return the names of the first run's signals, in order and without the prefix "task_"."""
        return [name for name, _ in self._signals(task_id)]

    def state_of(self, task_id: str) -> str | None:
        """Return the state in ``task_postrun`` of the first run, or None if the signal was not sent."""
        return next((state for name, state in self._signals(task_id) if name == "postrun"), None)

    def _signals(self, task_id: str) -> list[tuple[str, str]]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(name, state) for celery_id, name, state in map(str.split, lines) if celery_id == f"{task_id}.1"]


@pytest.fixture(scope="module", params=POOLS)
def signal_log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SignalLog]:
    folder = tmp_path_factory.mktemp(request.param)
    log = folder / "signals"
    with running_system(
        folder, request.param, broker, app="tests.support.agents.signal_log", TEST_SIGNALS=str(log)
    ) as system:
        system.fleet.watcher().wait_for_output("listening for revokes")
        yield SignalLog(system, log)


def table() -> dict[str, tuple[str, str, str]]:
    """Return the rows of the documented table by outcome: signals on prefork, signals on other pools, event."""
    section = PAGE.partition("## Celery's signals and events")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {row[0]: (row[1], row[2], row[3]) for row in rows if row[0] != "the A2A task" and set(row[0]) != {"-"}}


def cancel(system: SystemUnderTest, agent: str, task_id: str) -> None:
    """Cancel a task as its client, and require that it is CANCELED."""
    answer = rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", agent=agent)
    assert answer.json()["status"]["state"] == "TASK_STATE_CANCELED"


def cancel_running_task(system: SystemUnderTest) -> str:
    """Cancel a task while its agent works. Return the task's id."""
    task_id = system.send("patient", "hi")
    eventually(lambda: system.is_in(task_id, "WORKING"))
    cancel(system, "patient", task_id)
    return task_id


def cancel_queued_task(system: SystemUnderTest) -> str:
    """Cancel a task before a worker fetches its message. Return the task's id."""
    with system.pause_consumer():
        task_id = system.send("echo", "hello")
        cancel(system, "echo", task_id)
        eventually(lambda: f"{task_id}.1" in system.revoked_in_worker(), what="the worker knows the revoke")
    return task_id


def revoke_queued_run(system: SystemUnderTest) -> str:
    """Revoke a run before a worker fetches its message. Return the task's id."""
    with system.pause_consumer():
        task_id = system.send("echo", "hello")
        system.revoke(task_id)
    return task_id


def terminate_run(system: SystemUnderTest) -> str:
    """Revoke a run with ``terminate=True`` while its agent works. Return the task's id."""
    task_id = system.send("silent", "60")
    eventually(lambda: system.is_in(task_id, "WORKING"))
    system.celery.control.revoke(f"{task_id}.1", terminate=True)
    return task_id


def expire_run(system: SystemUnderTest, message: str) -> str:
    """Send a message whose run expires before a worker fetches it. Return the task's id."""
    with system.pause_consumer():
        task_id = system.send("perishable", message)
        send_time = time.monotonic()
        eventually(lambda: time.monotonic() > send_time + 2, what="it expires")
    return task_id


WAYS: dict[str, dict[str, Callable[[SystemUnderTest], str]]] = {
    "COMPLETED": {"function": lambda system: system.send("echo", "hi")},
    "FAILED, by its agent or a time limit": {
        "exception": lambda system: system.send("fail"),
        "agent's limit": lambda system: system.send("limited"),
    },
    "FAILED, its process was lost": {"SIGKILL": lambda system: system.send("ends", "SIGKILL")},
    "WORKING, it is retried": {
        "autoretry_for": lambda system: system.send("unlucky"),
        "plain task": lambda system: system.send("later", data={"countdown": 180}),
    },
    "WORKING, it is suspended": {"wait_for": lambda system: system.send("suspended")},
    "INPUT_REQUIRED": {"InputRequired": lambda system: system.send("ask")},
    "AUTH_REQUIRED": {"AuthRequired": lambda system: system.send("authorize")},
    "REJECTED, by its agent": {
        "Rejected": lambda system: system.send("refuse"),
        "Reject": lambda system: system.send("ends", "Reject"),
    },
    "REJECTED or FAILED, a plain Celery task by its exception": {
        "Rejected": lambda system: system.send("raises", data={"what": "Rejected"}),
        "ValueError": lambda system: system.send("raises", data={"what": "ValueError"}),
    },
    "REJECTED, expired": {"expires": lambda system: expire_run(system, "hello")},
    "REJECTED, the worker has no such agent": {"ghost": lambda system: system.send("ghost", "hi")},
    "CANCELED, by its client, while it ran": {"CancelTask": cancel_running_task},
    "CANCELED, by its agent": {"CancelledError": lambda system: system.send("ends", "CancelledError")},
    "CANCELED, by its client or an operator, before it began": {
        "CancelTask": cancel_queued_task,
        "revoke": revoke_queued_run,
    },
    "CANCELED, by an operator, while it ran": {"terminate": terminate_run},
}
"""Functions that cause the outcomes of the table, by row and name. Each returns the id of its task."""


def test_each_row_of_the_table_is_brought_about() -> None:
    assert list(table()) == list(WAYS)


@pytest.mark.every_cell
@pytest.mark.parametrize(("row", "way"), [(row, way) for row, ways in WAYS.items() for way in ways])
def test_each_end_sends_the_signals_of_the_table(signal_log: SignalLog, row: str, way: str, tmp_path: Path) -> None:
    system, (prefork_signals, other_signals, event) = signal_log.system, table()[row]
    expected = prefork_signals if system.pool == "prefork" else other_signals
    names = [name.removeprefix("task_") for name in re.findall(r"`(task_\w+)`", expected)]
    if "lost" in row and system.pool != "prefork":  # the loss would kill the shared worker, so use a separate fleet
        require_lost_worker(system, tmp_path, row, names)
        return
    task_id = WAYS[row][way](system)

    eventually(lambda: len(signal_log.signals_of(task_id)) >= len(names), what=f"the worker sends {names}")
    system.require_celery_events(task_id, event.strip("`").removeprefix("task-"))
    eventually(lambda: system.log(task_id)[-1] in row, what="the task is in its state")
    assert Counter(signal_log.signals_of(task_id)) == Counter(names)
    if "postrun" in names and way != "terminate":
        expected_state = {"success": "SUCCESS", "failure": "FAILURE", "retry": "RETRY"}.get(names[1], "IGNORED")
        assert signal_log.state_of(task_id) == expected_state
    system.require_working()
    assert len(system.events.ends_of(f"{task_id}.1")) == 1, "no other end follows"


@pytest.mark.each_kind
def test_a_copy_of_a_message_sends_no_signal_of_an_end(signal_log: SignalLog) -> None:
    system = signal_log.system
    task_id = system.send("echo", "hi")
    eventually(lambda: signal_log.signals_of(task_id) == ["prerun", "success", "postrun"], what="the run has ended")

    system.celery.send_task("a2a.echo", (task_id, 1), task_id=f"{task_id}.1", queue=system.fleet.queue)

    system.require_celery_events(task_id, "succeeded", "dropped")
    eventually(lambda: signal_log.signals_of(task_id)[3:] == ["prerun", "postrun"], what="the copy has ended")


@pytest.mark.every_cell
def test_celerys_hard_limit_sends_two_failures(tmp_path: Path, broker: str) -> None:
    log = tmp_path / "signals"
    env = {"app": "tests.support.agents.signal_log", "TEST_SIGNALS": str(log), "TEST_TIME_LIMIT": "3"}
    with running_system(tmp_path, "prefork", broker, **env) as system:
        task_id = system.send("stuck", "60")

        system.require_celery_events(task_id, "failed", "failed")
        assert SignalLog(system, log).signals_of(task_id) == ["prerun", "failure", "failure"]


def require_lost_worker(system: SystemUnderTest, folder: Path, row: str, names: list[str]) -> None:
    """Require that Celery sends the signals `names` when a worker dies during a run, and that a watcher fails the run.

    Args:
        system: System whose pool and broker the lost worker uses.
        folder: Folder of a new fleet, because the loss ends the worker.
        row: Row of the documented table, which names the final state of the task.
        names: Names of the signals in order, without the prefix "task_".
    """
    log, app = folder / "signals", "tests.support.agents.signal_log"
    env = {"app": app, "TEST_SIGNALS": str(log), "A2A_LEASE_TTL": "2"}
    broker = "redis" if system.fleet.broker_url == system.fleet.redis.broker_url else "rabbitmq"
    with running_system(folder, system.pool, broker, **env) as lone_system:
        task_id = lone_system.send("ends", "SIGKILL")
        eventually(lambda: not lone_system.worker.is_running, what="the worker is gone")
        lone_system.fleet.watcher()
        eventually(lambda: lone_system.is_in(task_id, "FAILED"), what="a watcher ends the run")
        lone_system.require_celery_events(task_id, "failed")
        assert lone_system.log(task_id)[-1] in row
        assert SignalLog(lone_system, log).signals_of(task_id) == names


ENDS_FROM_SIGNALS = [
    ("fail", "", ["WORKING", "FAILED"], AGENT_FAILED),
    ("ends", "SIGKILL", ["WORKING", "FAILED"], WORKER_LOST),
    ("ghost", "hello", ["REJECTED"], AGENT_UNKNOWN),
    ("terminated", "60", ["WORKING", "CANCELED"], CANCELED_BY_OPERATOR),
    ("revoked", "hello", ["CANCELED"], CANCELED_BY_OPERATOR),
    ("expired", "hello", ["REJECTED"], NOT_BEGUN_IN_TIME),
    ("unreadable", "hello", ["REJECTED"], MESSAGE_UNREADABLE),
    ("count", "3", ["FAILED"], AGENT_FAILED),
]
POOLS_WITHOUT = {
    "terminated": ["threads", "solo"],  # Celery terminates no thread, and a busy solo worker reads no broadcast
    "ends": ["threads", "solo", "gevent", "asyncio"],  # the whole worker is lost with its receivers
}
"""Pools in which an outcome of `ENDS_FROM_SIGNALS` cannot occur, by the name of the outcome."""


@pytest.fixture(scope="module", params=POOLS)
def receiver_system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, app="tests.support.agents.receiver_agents") as system:
        yield system


@pytest.mark.each_kind
@pytest.mark.parametrize(
    ("agent_name", "message", "log", "text"), ENDS_FROM_SIGNALS, ids=[row[0] for row in ENDS_FROM_SIGNALS]
)
def test_a_receiver_writes_the_end_that_the_run_did_not_write(
    receiver_system: SystemUnderTest, agent_name: str, message: str, log: list[str], text: str
) -> None:
    system, agent = receiver_system, agent_name
    if system.pool in POOLS_WITHOUT.get(agent_name, ()):
        return
    match agent_name:
        case "terminated":
            agent = "silent"
            task_id = system.send(agent, message)
            eventually(lambda: system.is_in(task_id, "WORKING"))
            system.celery.control.revoke(f"{task_id}.1", terminate=True)
        case "revoked":
            agent = "echo"
            with system.pause_consumer():
                task_id = system.send(agent, message)
                system.revoke(task_id)
        case "expired":
            agent = "perishable"
            task_id = expire_run(system, message)
        case "unreadable":
            agent = "echo"
            with system.pause_consumer(), system.celery.connection_for_write() as connection:
                task_id = system.send(agent, message)
                eventually(
                    lambda: connection.default_channel.queue_purge(system.fleet.queue), what="its message is gone"
                )
                system.celery.send_task(
                    "a2a.echo",
                    (task_id, 1),
                    task_id=f"{task_id}.1",
                    queue=system.fleet.queue,
                    headers={"expires": "never"},
                )
        case _:
            task_id = system.send(agent, message)

    task = system.wait_for_end(agent, task_id)

    assert text_of(task) == text
    assert system.log(task_id) == ["SUBMITTED", *log]


@pytest.fixture(scope="module", params=POOLS)
def retry_system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, app="tests.support.agents.unwritten_retries") as system:
        yield system


@pytest.mark.each_kind
def test_a_receiver_writes_the_retry_that_the_run_did_not_write(retry_system: SystemUnderTest) -> None:
    system = retry_system
    task_id = system.send("hours_later", data={})

    eventually(lambda: len(system.log(task_id)) == 3, what="the retry is written")

    assert system.log(task_id) == ["SUBMITTED", "WORKING", "WORKING"]
    [retry] = attempts(system, task_id)
    assert retry.pop(NEXT_ATTEMPT_AT) == retry.pop(NAMESPACE + NEXT_ATTEMPT_AT)
    assert retry == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 4})
    with Redis.from_url(system.fleet.redis.store_url) as redis:
        phase, retry_state = redis.hmget(Keys("a2a").task(task_id).record, "phase", "retry_state")
        assert (phase, retry_state) == (b"queued", b"1 1"), "it waits for its next attempt"


@pytest.mark.each_kind
def test_the_next_attempt_writes_no_retry_a_second_time(retry_system: SystemUnderTest) -> None:
    system = retry_system
    task_id = system.send("flaky", data={"succeed_at": 3})

    system.wait_for_end("flaky", task_id)

    assert system.log(task_id) == ["SUBMITTED", "WORKING", "WORKING", "WORKING", "artifact", "COMPLETED"]
    assert attempts(system, task_id) == [own_metadata({ATTEMPT: attempt, MAX_ATTEMPTS: 3}) for attempt in (2, 3)]


def attempts(system: SystemUnderTest, task_id: str) -> list[dict[str, Any]]:
    """Return the metadata of each status that announces a retry."""
    return [
        dict(entry.event.metadata)
        for entry in system.store.run(read_log(Keys("a2a"), task_id, 0)).entries
        if isinstance(entry.event, TaskStatusUpdateEvent) and "attempt" in entry.event.metadata
    ]
