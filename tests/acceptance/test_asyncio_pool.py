"""A thousand agents wait in one worker process without a thread each, and nothing else of Celery's is given up for it.

How runs end there is in test_endings, test_cancel and test_shutdown, beside the other pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR, WORKER_LOST
from tests.support.clients import V1, message_json, rest
from tests.support.fleet import ASYNCIO_POOL
from tests.support.site import Site, open_site, text_of
from tests.support.waiting import LIMIT, eventually

AGENTS = 1000
FEW = 60
"""Threads, and connections, of a process that has neither for each of its agents."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("asyncio")
    with open_site(folder, "asyncio", concurrency=1, A2A_LEASE_TTL="6") as site:
        yield site


def pool_of(site: Site) -> dict[str, Any]:
    """What the worker says of its pool."""
    options = {name: value for name, value in site.to_worker.items() if name != "reply"}
    answers = eventually(lambda: site.celery.control.inspect(**options).stats())
    pool: dict[str, Any] = next(iter(answers.values()))["pool"]
    return pool


def working(site: Site) -> int:
    """How many silent agents work."""
    answer = rest(site.gateway, "GET", "/tasks?status=TASK_STATE_WORKING&pageSize=1", agent="silent")
    return int(answer.json()["totalSize"])


def test_remote_control_makes_it_larger_and_smaller(site: Site) -> None:
    first, second, third = (site.send("silent", "3600") for _ in range(3))
    eventually(lambda: site.is_in(first, "WORKING"), what="the first works")
    eventually(lambda: pool_of(site)["waiting"] == 2, what="the others wait")
    pool = pool_of(site)
    assert (pool["implementation"], pool["max-concurrency"], pool["agents"]) == (ASYNCIO_POOL, 1, 1)

    assert site.celery.control.pool_grow(1, **site.to_worker)
    eventually(lambda: site.is_in(second, "WORKING"), what="there is room for a second")
    assert site.celery.control.pool_shrink(1, **site.to_worker)
    site.revoke(third)
    for task_id in (first, second):
        rest(site.gateway, "POST", f"/tasks/{task_id}:cancel", agent="silent")

    site.ended("silent", third)
    assert site.log(third) == ["SUBMITTED", "CANCELED"], "it was revoked while it waited in the pool"
    site.celery_says(third, "revoked")
    assert pool_of(site)["max-concurrency"] == 1
    site.goes_on()


def test_a_thousand_wait_and_their_worker_has_no_thread_for_each(site: Site) -> None:
    assert site.celery.control.pool_grow(AGENTS + 10, **site.to_worker)
    body = {"configuration": {"returnImmediately": True}}
    with ThreadPoolExecutor(8) as threads, httpx.Client(headers=V1, timeout=LIMIT) as http:

        def send(_: int) -> str:
            answer = http.post(f"{site.gateway.url}/agents/silent/message:send", json=message_json("3600") | body)
            task_id: str = answer.json()["task"]["id"]
            return task_id

        tasks = list(threads.map(send, range(AGENTS)))
    eventually(lambda: working(site) == AGENTS, what="all work", every=0.5)

    worker = psutil.Process(site.worker.pid)
    assert worker.num_threads() < FEW
    assert len(worker.net_connections("all")) < FEW
    assert pool_of(site)["agents"] == AGENTS
    site.goes_on()
    canceled = rest(site.gateway, "POST", f"/tasks/{tasks[500]}:cancel", agent="silent").json()
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    site.celery.control.revoke(f"{tasks[501]}.1", terminate=True)
    assert text_of(site.ended("silent", tasks[501])) == CANCELED_BY_OPERATOR
    site.celery_says(tasks[501], "revoked")
    eventually(lambda: pool_of(site)["agents"] == AGENTS - 2, what="the others go on")

    site.worker.kill()
    site.fleet.watcher()
    eventually(lambda: working(site) == 0, what="a watcher ends them", every=0.5)
    assert text_of(site.ended("silent", tasks[0])) == WORKER_LOST
