"""Workers that die or freeze with their runs: what had to end ends, what may go on does, nothing runs twice at once."""

from __future__ import annotations

import signal
from typing import Any

import httpx
import pytest

from tests.support.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import eventually

HEADERS = {"A2A-Version": "1.0"}
LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
RECOVERED = 2 + 10
"""Seconds: the lease, and what a loaded machine adds."""


@pytest.fixture
def leased(tmp_path, broker: str):  # type: ignore[no-untyped-def]
    """A fleet with short leases, on either broker."""
    with running_fleet(tmp_path, broker, **LEASE) as fleet:
        yield fleet


def send(gateway: Gateway, agent: str, text: str) -> dict[str, Any]:
    body = {
        "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]},
        "configuration": {"returnImmediately": True},
    }
    answer = httpx.post(f"{gateway.url}/agents/{agent}/message:send", json=body, headers=HEADERS, timeout=20)
    task: dict[str, Any] = answer.json()["task"]
    return task


def read(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    url = f"{gateway.url}/agents/{agent}/tasks/{task['id']}"
    found: dict[str, Any] = httpx.get(url, headers=HEADERS, timeout=20).json()
    return found


def state(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def test_a_worker_that_is_killed_fails_what_may_not_run_twice_and_gives_on_what_may(leased: Fleet) -> None:
    gateway, doomed = leased.gateway(), leased.worker(concurrency=2)
    once, again = send(gateway, "silent", "60"), send(gateway, "steady", "60 60")
    eventually(lambda: state(read(gateway, "silent", once)) == "WORKING", what="the first works")
    eventually(lambda: "artifacts" in read(gateway, "steady", again), what="the second has begun")
    waiting = send(gateway, "echo", "prefetched or queued")
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
    task = send(gateway, "steady", "60 6")
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
    task = send(gateway, "poison", "")
    for _ in range(2):
        victim = fleet.worker(pool="solo", **LEASE)
        eventually(lambda v=victim: not v.running, within=30, what="the worker dies of it")

    eventually(lambda: state(read(gateway, "poison", task)) == "FAILED", within=RECOVERED, what="it is given up")
    fleet.worker(**LEASE)
    assert state(read(gateway, "poison", task)) == "FAILED"
    done = send(gateway, "echo", "still here")
    eventually(lambda: state(read(gateway, "echo", done)) == "COMPLETED", what="others run")
