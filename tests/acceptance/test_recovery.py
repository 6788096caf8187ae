"""Workers that die or freeze with their runs: what had to end ends, what may go on does, nothing runs twice at once."""

from __future__ import annotations

import signal

import pytest

from tests.support.fleet import Fleet, running_fleet
from tests.support.talk import read, send, state
from tests.support.waiting import eventually

pytestmark = [pytest.mark.every_cell, pytest.mark.timeout(300)]

LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
RECOVERED = 2 + 30
"""Seconds: the lease, and what a loaded machine adds."""


@pytest.fixture
def leased(tmp_path, broker: str):  # type: ignore[no-untyped-def]
    """A fleet with short leases, on either broker."""
    with running_fleet(tmp_path, broker, **LEASE) as fleet:
        yield fleet


def test_a_worker_that_is_killed_fails_what_may_not_run_twice_and_gives_on_what_may(leased: Fleet) -> None:
    gateway, doomed = leased.gateway(), leased.worker(concurrency=2)
    once, again = (
        send(gateway, "silent", "60", returnImmediately=True),
        send(gateway, "steady", "60 60", returnImmediately=True),
    )
    eventually(lambda: state(read(gateway, "silent", once)) == "WORKING", what="the first works")
    eventually(lambda: "artifacts" in read(gateway, "steady", again), what="the second has begun")
    waiting = send(gateway, "echo", "prefetched or queued", returnImmediately=True)
    doomed.kill()
    leased.watcher()
    leased.watcher()
    leased.worker(concurrency=2)

    eventually(lambda: state(read(gateway, "silent", once)) == "FAILED", within=RECOVERED, what="the first is failed")
    assert read(gateway, "silent", once)["status"]["message"]["parts"] == [{"text": "The worker was lost."}]
    second_attempt = eventually(
        lambda: [a for a in read(gateway, "steady", again)["artifacts"] if "attempt 2" in str(a)],
        within=RECOVERED,
        what="the second runs again",
    )
    assert len(second_attempt) == 1
    artifacts = read(gateway, "steady", again)["artifacts"]
    assert [a["parts"][0]["text"] for a in artifacts] == ["finished", "attempt 2 "], "only what was whole is kept"
    eventually(
        lambda: state(read(gateway, "echo", waiting)) == "COMPLETED",
        within=90,
        what="what had not begun runs elsewhere",
    )


def test_a_worker_that_was_frozen_finds_its_run_gone(fleet: Fleet) -> None:
    gateway, frozen = fleet.gateway(**LEASE), fleet.worker(pool="threads", **LEASE)
    task = send(gateway, "steady", "60 6", returnImmediately=True)
    eventually(lambda: "artifacts" in read(gateway, "steady", task), what="it has begun")
    frozen.signal_group(signal.SIGSTOP)
    fleet.watcher(**LEASE)
    fleet.worker(pool="threads", **LEASE)
    eventually(lambda: "attempt 2" in str(read(gateway, "steady", task)), within=RECOVERED, what="another goes on")

    frozen.signal_group(signal.SIGCONT)

    frozen.wait_for_output("it was given to another worker")
    eventually(lambda: state(read(gateway, "steady", task)) == "COMPLETED", what="the other finishes")
    texts = ["".join(part["text"] for part in a["parts"]) for a in read(gateway, "steady", task)["artifacts"]]
    assert texts == ["finished", "attempt 2 done"]


def test_an_agent_that_kills_its_workers_is_stopped_after_its_limit(fleet: Fleet) -> None:
    gateway = fleet.gateway(**LEASE)
    fleet.watcher(**LEASE)
    task = send(gateway, "poison", "", returnImmediately=True)
    for _ in range(2):
        victim = fleet.worker(pool="solo", **LEASE)
        eventually(lambda v=victim: not v.running, within=30, what="the worker dies of it")

    eventually(lambda: state(read(gateway, "poison", task)) == "FAILED", within=RECOVERED, what="it is given up")
    fleet.worker(**LEASE)
    assert state(read(gateway, "poison", task)) == "FAILED"
    done = send(gateway, "echo", "still here", returnImmediately=True)
    eventually(lambda: state(read(gateway, "echo", done)) == "COMPLETED", what="others run")
