"""Shutdown of a worker in every pool. No run is lost, and a run that may be retried is returned to the queue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2a_celery.lifecycle.outcomes import WORKER_LOST
from a2a_celery.lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, RETURNED_ATTEMPT, own_metadata
from a2a_celery.store import Keys
from tests.acceptance.test_endings import WORKED, SystemUnderTest, running_system, text_of
from tests.support.clients.bindings import rest
from tests.support.processes.fleet import Process
from tests.support.waiting import eventually
from tests.tiers import at_night

pytestmark = pytest.mark.every_cell

POOLS = ("prefork", "threads", "solo")
"""Pools in which all shutdowns are tested. Celery's cold shutdown of a gevent worker fails in the signal handler, so
only warm shutdowns are tested in that pool."""

SHUTDOWNS = ("warm", "soft", "cold")
PREFORK = [("prefork", kind) for kind in SHUTDOWNS]
STOPS = 30.0
"""Seconds within which a worker must exit. The agents of the tests would work for a minute."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@contextmanager
def site_on(broker: str, folder: Path) -> Iterator[SystemUnderTest]:
    """Run a gateway without a worker. A watcher is not needed, because a worker that shuts down requeues its runs."""
    env = {"app": "tests.support.agents.shutdown_agents", "TEST_FOLDER": str(folder), "A2A_CANCEL_GRACE": "3"}
    with running_system(folder, "solo", broker, **env) as system:
        system.worker.stop()
        yield system


@pytest.fixture(scope="module")
def system(folder: Path) -> Iterator[SystemUnderTest]:
    with site_on("redis", folder) as system:
        yield system


@pytest.fixture(scope="module")
def brokers_site(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[SystemUnderTest]:
    """System on each broker with a watcher, because Redis may deliver a message to a worker that shuts down and does
    not execute the run."""
    with site_on(broker, tmp_path_factory.mktemp(broker)) as system:
        system.fleet.watcher()
        yield system


def words(folder: Path, task_id: str) -> list[str]:
    """Return the lines that the agent wrote."""
    path = folder / task_id
    return path.read_text().splitlines() if path.exists() else []


def begin_task(system: SystemUnderTest, folder: Path, agent: str, message: str) -> str:
    """Send a message, and wait until the agent works and has written an artifact. Return the task's id."""
    task_id = system.send(agent, message)
    eventually(lambda: "begins 1" in words(folder, task_id), what=f"{agent} begins")
    eventually(lambda: system.log(task_id)[-1] == "artifact", what="the artifact is stored")
    return task_id


def allow_end(folder: Path, task_id: str) -> None:
    """Create the file that an agent waits for after it has received the message "until"."""
    (folder / f"{task_id}.may-end").touch()


def stop(worker: Process, kind: str) -> None:
    """Stop a worker with the signals for `kind`. Return when the worker has begun the shutdown."""
    if kind in ("soft", "cold"):
        worker.signal(signal.SIGQUIT)
        return
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in worker.output(), what="it stops")
    if kind == "second SIGTERM":
        worker.signal(signal.SIGTERM)


def wait_for_exit(worker: Process, within: float = STOPS) -> None:
    eventually(lambda: not worker.is_running, within=within, what=f"{worker.name} has ended: {worker.output()[-3000:]}")


def new_worker(system: SystemUnderTest, pool: str, kind: str = "", **env: str) -> Process:
    if kind == "soft":
        env["TEST_SOFT_SHUTDOWN"] = "1"
    return system.fleet.worker(pool=pool, concurrency=2, **env)


@pytest.mark.parametrize(
    ("pool", "kind"),
    at_night(
        [*((pool, kind) for pool in (*POOLS, "asyncio") for kind in SHUTDOWNS), ("gevent", "warm")],
        merge=[*PREFORK, ("threads", "cold"), ("solo", "soft"), ("asyncio", "cold"), ("gevent", "warm")],
    ),
)
def test_a_run_that_may_be_run_again_is_returned(system: SystemUnderTest, folder: Path, pool: str, kind: str) -> None:
    worker = new_worker(system, pool, kind)
    task_id = begin_task(system, folder, "worth-another", "until 0")

    stop(worker, kind)

    if kind == "warm":
        allow_end(folder, task_id)
        wait_for_exit(worker)
        assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]
        assert words(folder, task_id) == ["begins 1"]
        system.require_celery_events(task_id, "succeeded")
        return
    wait_for_exit(worker)
    assert system.log(task_id) == [*WORKED, "artifact", "WORKING", "WORKING"]
    second_worker = new_worker(system, pool)
    task = system.wait_for_end("worth-another", task_id)
    assert system.log(task_id)[3:] == ["WORKING", "WORKING", "artifact", "COMPLETED"]
    assert words(folder, task_id) == ["begins 1", "cleaned up", "begins 2"]
    assert task["metadata"] == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 3, RETURNED_ATTEMPT: 1})
    texts = ["".join(part["text"] for part in artifact["parts"]) for artifact in task["artifacts"]]
    assert texts == ["finished", "attempt 2 done"]
    system.require_celery_events(task_id, "cancelled")
    second_worker.stop()


@pytest.mark.parametrize(
    ("pool", "kind"),
    at_night(
        [(pool, kind) for pool in POOLS for kind in SHUTDOWNS],
        merge=[("prefork", "soft"), ("prefork", "cold"), ("threads", "cold"), ("solo", "cold")],
    ),
)
def test_a_run_that_must_not_begin_twice_fails_at_once(
    system: SystemUnderTest, folder: Path, pool: str, kind: str
) -> None:
    worker = new_worker(system, pool, kind)
    task_id = begin_task(system, folder, "once-only", "until")

    stop(worker, kind)

    if kind == "warm":
        allow_end(folder, task_id)
    task = system.wait_for_end("once-only", task_id)
    wait_for_exit(worker)
    if kind == "warm":
        assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]
        system.require_celery_events(task_id, "succeeded")
        return
    assert text_of(task) == WORKER_LOST
    assert system.log(task_id) == [*WORKED, "artifact", "FAILED"]
    assert words(folder, task_id) == ["begins 1", "cleaned up"]
    system.require_celery_events(task_id, "cancelled")


@pytest.mark.parametrize("pool", at_night(POOLS, merge=["prefork"]))
def test_what_ends_within_the_soft_time_has_ended(system: SystemUnderTest, folder: Path, pool: str) -> None:
    worker = system.fleet.worker(pool=pool, concurrency=2, TEST_SOFT_SHUTDOWN="6")
    task_id = begin_task(system, folder, "once-only", "until")

    stop(worker, "soft")
    allow_end(folder, task_id)

    wait_for_exit(worker)
    assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]


@pytest.mark.parametrize(
    ("pool", "kind", "fetched_count"),  # a busy solo worker prefetches no run, a busy gevent worker one
    [*((pool, kind, 4) for pool in ("prefork", "threads") for kind in ("warm", "cold")), ("gevent", "warm", 1)],
)
def test_what_waits_in_a_worker_runs_elsewhere_at_once(
    brokers_site: SystemUnderTest, pool: str, kind: str, fetched_count: int
) -> None:
    system, folder = brokers_site, brokers_site.fleet.folder
    worker = new_worker(system, pool, kind)
    busy = [begin_task(system, folder, "worth-another", "until 0") for _ in range(2)]
    waiting_tasks = [system.send("once-only", "0") for _ in range(fetched_count)]
    eventually(lambda: all(f"{t}.1" in worker.output() for t in waiting_tasks), what="it has them")
    other = new_worker(system, pool)

    stop(worker, kind)

    for task_id in waiting_tasks:
        eventually(lambda task_id=task_id: system.is_in(task_id, "COMPLETED"), what="the task is COMPLETED")
        assert system.log(task_id) == [*WORKED, "artifact", "COMPLETED"]
        assert words(folder, task_id) == ["begins 1"]
    if kind == "warm":
        assert not any(system.is_in(task_id, "COMPLETED") for task_id in busy), "the others did not wait for these"
        for task_id in busy:
            allow_end(folder, task_id)
    wait_for_exit(worker)
    for task_id in busy:
        system.wait_for_end("worth-another", task_id)
        assert system.is_in(task_id, "COMPLETED")
    other.stop()


@pytest.mark.parametrize("pool", at_night(POOLS, merge=["prefork"]))
def test_a_framework_that_calls_it_a_cancel_is_not_believed(system: SystemUnderTest, pool: str) -> None:
    worker = new_worker(system, pool)
    task_id = system.send("reports-once", "")
    eventually(lambda: system.is_in(task_id, "WORKING"))

    stop(worker, "cold")

    wait_for_exit(worker)
    assert system.log(task_id) == [*WORKED, "FAILED"]


@pytest.mark.parametrize(
    ("pool", "agent"),
    at_night(
        [*((pool, agent) for agent in ("blocks-loop", "blocks-thread") for pool in POOLS), ("asyncio", "blocks-loop")],
        merge=[
            *(("prefork", agent) for agent in ("blocks-loop", "blocks-thread")),
            *((pool, "blocks-loop") for pool in ("threads", "asyncio")),
        ],
    ),
)
def test_an_agent_that_can_not_be_stopped_does_not_hold_up_its_worker(
    system: SystemUnderTest, folder: Path, pool: str, agent: str
) -> None:
    worker = new_worker(system, pool)
    task_id = system.send(agent, "")
    eventually(lambda: words(folder, task_id) == ["blocked"], what="it is blocked")
    eventually(lambda: len(system.log(task_id)) == 3, what="the artifact is stored")

    stop(worker, "second SIGTERM")

    eventually(lambda: len(system.log(task_id)) == 4, what="it is handed back")
    wait_for_exit(worker)
    second_worker = new_worker(system, pool)
    assert system.wait_for_end(agent, task_id)["metadata"]["attempt"] == 2
    assert system.is_in(task_id, "COMPLETED")
    second_worker.stop()


@pytest.mark.parametrize("pool", at_night(POOLS, merge=["prefork", "threads"]))
def test_a_client_that_asked_to_cancel_gets_that(system: SystemUnderTest, folder: Path, pool: str) -> None:
    worker = new_worker(system, pool)
    task_id = system.send("blocks-loop", "")
    eventually(lambda: words(folder, task_id) == ["blocked"], what="it is blocked")
    record_key = Keys("a2a").task(task_id).record
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(rest, system.gateway, "POST", f"/tasks/{task_id}:cancel", agent="blocks-loop")
        eventually(lambda: system.store.redis.hget(record_key, "cancel_requested") == b"1")

        stop(worker, "second SIGTERM")

        task = answer.result().json()
    if task["status"]["state"] == "TASK_STATE_WORKING":  # the response arrives after the grace period
        task = system.wait_for_end("blocks-loop", task_id)

    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert system.log(task_id) == [*WORKED, "WORKING", "CANCELED"]
    wait_for_exit(worker)


@pytest.mark.parametrize(
    ("pool", "agent"),
    at_night(
        [(pool, agent) for pool in POOLS for agent in ("plain-again", "plain-once")],
        merge=[("prefork", "plain-again"), ("prefork", "plain-once"), ("threads", "plain-again")],
    ),
)
def test_a_plain_celery_task_is_returned_or_fails_alike(
    system: SystemUnderTest, folder: Path, pool: str, agent: str
) -> None:
    worker = new_worker(system, pool)
    task_id = system.send(agent, "60 0")
    eventually(lambda: words(folder, task_id) == ["begins 1"], what="the run begins")

    stop(worker, "second SIGTERM")

    wait_for_exit(worker)
    if agent == "plain-once":
        assert system.log(task_id) == [*WORKED, "FAILED"]
        assert text_of(system.wait_for_end(agent, task_id)) == WORKER_LOST
        return
    second_worker = new_worker(system, pool)
    system.wait_for_end(agent, task_id)
    assert system.log(task_id) == [*WORKED, "WORKING", "artifact", "COMPLETED"]
    assert words(folder, task_id) == ["begins 1", "begins 2"]
    second_worker.stop()
