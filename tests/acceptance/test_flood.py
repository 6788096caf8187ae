"""Rate limits of a tenant that sends ten times its limit. Another tenant is not affected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
import redis

from tests.support.clients.bindings import V1, ServedFleet, message_json, serve_fleet
from tests.support.receivers.scrapes import scrape
from tests.support.waiting import LIMIT

pytestmark = pytest.mark.nightly

LIMITS = {"A2A_OWNER_REQUESTS_PER_SECOND": "1", "A2A_OWNER_REQUEST_BURST": "10", "A2A_OWNER_MAX_CONCURRENT_TASKS": "10"}
FLOOD = 100
"""Minimum number of requests: ten times the burst that the limit allows."""


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(
        tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, grpc=False, **LIMITS
    ) as served_fleet:
        yield served_fleet


async def test_another_tenant_does_not_feel_it(served_fleet: ServedFleet) -> None:
    loud: Counter[int] = Counter()
    over = asyncio.Event()

    async with httpx.AsyncClient(base_url=f"{served_fleet.url}/agents/echo", headers=V1, timeout=LIMIT) as http:

        async def flood() -> None:
            while not over.is_set() or loud.total() < FLOOD:
                answers = await asyncio.gather(
                    *(http.post("/loud/message:send", json=message_json("flood")) for _ in range(10))
                )
                loud.update(answer.status_code for answer in answers)

        flood_task = asyncio.create_task(flood())
        quiet = [await http.post("/quiet/message:send", json=message_json(str(number))) for number in range(10)]
        over.set()
        await flood_task

    assert [answer.status_code for answer in quiet] == [200] * 10
    texts = [answer.json()["task"]["artifacts"][0]["parts"][0]["text"] for answer in quiet]
    assert texts == [str(number) for number in range(10)]
    assert set(loud) == {200, 429}


def test_nothing_is_stored_of_what_was_refused(served_fleet: ServedFleet) -> None:
    store = redis.Redis.from_url(served_fleet.fleet.redis.store_url)
    metrics = scrape(served_fleet.url)

    tasks = list(store.scan_iter("a2a:{*}:task"))

    assert metrics.get("a2a_gateway_refusals_total", agent="echo", limit="requests") > 0
    assert len(tasks) == metrics.get("a2a_gateway_requests_total", agent="echo", operation="SendMessage", outcome="ok")
