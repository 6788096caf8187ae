"""Inbox of the page: its order, its pages, its totals and its permissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import AUTH_REQUIRED, COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.waiting import MAX_BYTES
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import local_gateway
from tests.support.store.seeds import Seeds, status

ANN, ANNS_OTHER, BOB = Scope("echo", "", "ann"), Scope("other", "", "ann"), Scope("echo", "", "bob")
USERS = [api_key_entry("ann", "one"), api_key_entry("bob", "two"), api_key_entry("eve", "three", "acme")]


class Inbox:
    """Gateway whose inbox is read by Ann, unless another key is given."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def read(self, query: str = "", key: str = "one") -> dict[str, Any]:
        answer = await self.http.get(f"/ui/inbox.json?{query}", headers={"X-API-Key": key})
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        content: dict[str, Any] = answer.json()
        return content

    async def pages(self, query: str) -> list[list[str]]:
        """Return the ids on each page."""
        pages: list[list[str]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self.read(f"{query}&cursor={cursor}")
            pages.append([entry["task"]["id"] for entry in page["tasks"]])
            cursor = page["next"]
            assert len(pages) < 100
        return pages


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
async def inbox(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Inbox]:
    async with local_gateway(store, redis_server.store_url, keys, ui=True, auth_api_keys=USERS) as gateway:
        yield Inbox(gateway.http)


async def test_the_oldest_question_of_all_agents_comes_first(inbox: Inbox, seeds: Seeds) -> None:
    first = await seeds.create_task_in(INPUT_REQUIRED, scope=ANNS_OTHER)
    second = await seeds.create_task_in(AUTH_REQUIRED, scope=ANN)
    for scope in (BOB, Scope("echo", "acme", "ann")):
        await seeds.create_task_in(INPUT_REQUIRED, scope=scope)
    await seeds.create_task_in(COMPLETED, scope=ANN)
    third = await seeds.create_task_in(INPUT_REQUIRED, scope=ANN)

    page = await inbox.read()

    assert [(entry["agent"], entry["task"]["id"]) for entry in page["tasks"]] == [
        ("other", first), ("echo", second), ("echo", third),
    ]  # fmt: skip
    assert (page["totals"], page["next"]) == ({"echo": 2, "other": 1}, None)
    assert page["tasks"][1]["task"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert len((await inbox.read(key="two"))["tasks"]) == 1


async def test_pages_have_each_task_once(inbox: Inbox, seeds: Seeds, store: AsyncStore, keys: Keys) -> None:
    ids = [await seeds.create_task_in(INPUT_REQUIRED, scope=(ANN, ANNS_OTHER)[i % 2]) for i in range(25)]
    index = f"{keys.scope_index(ANN)}{INPUT_REQUIRED}"
    newest_us = await store.redis.zscore(index, ids[-1])
    tied = sorted([await seeds.create_task_in(INPUT_REQUIRED, scope=ANN) for _ in range(9)])
    for task_id in tied:
        await store.redis.zadd(index, {task_id: newest_us + 5})
        await store.redis.hset(keys.task(task_id).record, "at", int(newest_us + 5))

    pages = await inbox.pages("size=4")

    assert [task for page in pages for task in page] == [*ids, *tied]
    assert {len(page) for page in pages[:-1]} == {4}
    assert await inbox.pages("agent=other&size=50") == [ids[1::2]]
    assert (await inbox.read("size=0")) == {"tasks": [], "totals": {"echo": 22, "other": 12}, "next": None}


async def test_a_page_is_bounded_by_bytes(inbox: Inbox, seeds: Seeds) -> None:
    ids = []
    for _ in range(3):
        claim = await seeds.claim_run(scope=ANN)
        await seeds.settle_run(claim, status(INPUT_REQUIRED, "x" * (MAX_BYTES // 2)))
        ids.append(claim.ref.task_id)

    assert await inbox.pages("") == [[task_id] for task_id in ids]


async def test_a_page_costs_the_same_for_many_tasks(inbox: Inbox, seeds: Seeds, store: AsyncStore) -> None:
    async def calls() -> int:
        async def count() -> int:
            return sum(stat["calls"] for stat in (await store.redis.info("commandstats")).values())

        before = await count()
        await inbox.read()
        return await count() - before

    async def create(number: int) -> None:
        await asyncio.gather(*(seeds.create_task_in(INPUT_REQUIRED, scope=ANN) for _ in range(number)))

    await create(30)
    await calls()  # loads the script
    early_calls = await calls()
    await create(500)

    assert await calls() == early_calls


@pytest.mark.parametrize(
    ("query", "field"), [("agent=x", "agent"), ("size=100", "size"), ("size=-1", "size"), ("cursor=1", "cursor")]
)
async def test_a_wrong_parameter_is_named(inbox: Inbox, query: str, field: str) -> None:
    answer = await inbox.http.get(f"/ui/inbox.json?{query}", headers={"X-API-Key": "one"})

    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


async def test_a_caller_needs_credentials_for_tasks_without_a_tenant(inbox: Inbox) -> None:
    assert (await inbox.http.get("/ui/inbox.json")).status_code == 401
    answer = await inbox.http.get("/ui/inbox.json", headers={"X-API-Key": "three"})
    assert answer.status_code == 403
