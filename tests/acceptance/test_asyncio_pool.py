"""Asyncio pool. A thousand agents wait in one worker process without a thread for each, and Celery's features work.

test_endings, test_cancel and test_shutdown test the outcomes of runs in this pool and in the other pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR, WORKER_LOST
from tests.support.clients.bindings import V1, message_json, rest
from tests.support.processes.fleet import ASYNCIO_POOL
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import LIMIT, eventually

AGENTS = 1000
FEW = 60
"""Maximum number of threads, and of connections, of a process with many agents."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp("asyncio")
    with running_system(folder, "asyncio", concurrency=1, A2A_LEASE_TTL="6") as system:
        yield system


def pool_of(system: SystemUnderTest) -> dict[str, Any]:
    """Return the pool statistics that the worker reports."""
    options = {name: value for name, value in system.worker_options.items() if name != "reply"}
    answers = eventually(lambda: system.celery.control.inspect(**options).stats())
    pool: dict[str, Any] = next(iter(answers.values()))["pool"]
    return pool


def count_working(system: SystemUnderTest) -> int:
    """Return the number of WORKING tasks of the agent "silent"."""
    answer = rest(system.gateway, "GET", "/tasks?status=TASK_STATE_WORKING&pageSize=1", agent="silent")
    return int(answer.json()["totalSize"])


def test_remote_control_makes_it_larger_and_smaller(system: SystemUnderTest) -> None:
    tasks = [system.send("silent", "3600") for _ in range(3)]
    eventually(lambda: count_working(system) == 1, what="one works")  # any of the three, in any order
    eventually(lambda: pool_of(system)["waiting"] == 2, what="the others wait")
    pool = pool_of(system)
    assert (pool["implementation"], pool["max-concurrency"], pool["agents"]) == (ASYNCIO_POOL, 1, 1)

    assert system.celery.control.pool_grow(1, **system.worker_options)
    eventually(lambda: count_working(system) == 2, what="a second slot is free")
    assert system.celery.control.pool_shrink(1, **system.worker_options)
    [third] = [task_id for task_id in tasks if system.is_in(task_id, "SUBMITTED")]
    system.revoke(third)
    for task_id in tasks:
        if task_id != third:
            rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", agent="silent")

    system.wait_for_end("silent", third)
    assert system.log(third) == ["SUBMITTED", "CANCELED"], "it was revoked while it waited in the pool"
    system.require_celery_events(third, "revoked")
    assert pool_of(system)["max-concurrency"] == 1
    system.require_working()


def test_a_thousand_wait_and_their_worker_has_no_thread_for_each(system: SystemUnderTest) -> None:
    assert system.celery.control.pool_grow(AGENTS + 10, **system.worker_options)
    body = {"configuration": {"returnImmediately": True}}
    with ThreadPoolExecutor(8) as threads, httpx.Client(headers=V1, timeout=LIMIT) as http:

        def send(_: int) -> str:
            answer = http.post(f"{system.gateway.url}/agents/silent/message:send", json=message_json("3600") | body)
            task_id: str = answer.json()["task"]["id"]
            return task_id

        tasks = list(threads.map(send, range(AGENTS)))
    eventually(lambda: count_working(system) == AGENTS, what="all work", every=0.5)

    worker = psutil.Process(system.worker.pid)
    assert worker.num_threads() < FEW
    assert len(worker.net_connections("all")) < FEW
    assert pool_of(system)["agents"] == AGENTS
    system.require_working()
    canceled_task = rest(system.gateway, "POST", f"/tasks/{tasks[500]}:cancel", agent="silent").json()
    assert canceled_task["status"]["state"] == "TASK_STATE_CANCELED"
    system.celery.control.revoke(f"{tasks[501]}.1", terminate=True)
    assert text_of(system.wait_for_end("silent", tasks[501])) == CANCELED_BY_OPERATOR
    system.require_celery_events(tasks[501], "revoked")
    eventually(lambda: pool_of(system)["agents"] == AGENTS - 2, what="the others go on")

    system.worker.kill()
    system.fleet.watcher()
    eventually(lambda: count_working(system) == 0, what="a watcher ends them", every=0.5)
    assert text_of(system.wait_for_end("silent", tasks[0])) == WORKER_LOST
