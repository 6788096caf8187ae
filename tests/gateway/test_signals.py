"""Signals over HTTP. Only the owner of a task can send signals, with the limits and errors of other operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.clock import SYSTEM_CLOCK
from a2a_celery.gateway.asgi import build_asgi
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.signals import MAX_PAYLOAD_BYTES
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.runs.commands import Claim, claim_run
from a2a_celery.store.tasks.signals import MAX_STORED_SIGNALS
from tests.support.agents.basic import card
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import local_gateway
from tests.support.store.seeds import LEASE_US, Seeds, status
from tests.support.store.suspensions import Suspensions, wait_for
from tests.support.waiting import LIMIT, eventually_async


class Caller:
    """Caller of the gateway, over HTTP+JSON."""

    def __init__(self, http: httpx.AsyncClient, key: str, path: str = "/agents/echo") -> None:
        self._http, self._path = http, path
        self._headers = {"A2A-Version": "1.0", "X-API-Key": key}

    async def task(self) -> str:
        """Create a task and return its id."""
        body = message_json("hello") | {"configuration": {"returnImmediately": True}}
        reply = await self._http.post(f"{self._path}/message:send", json=body, headers=self._headers)
        task_id: str = reply.json()["task"]["id"]
        return task_id

    async def signal(self, task_id: str, body: Any) -> httpx.Response:
        return await self._http.post(f"{self._path}/tasks/{task_id}:signal", json=body, headers=self._headers)


class Site:
    """Gateway with its callers and its store."""

    def __init__(self, http: httpx.AsyncClient, store: AsyncStore, keys: Keys) -> None:
        self.http, self.store, self.keys = http, store, keys
        self.ann, self.bob = Caller(http, "one"), Caller(http, "two")
        self.suspensions = Suspensions(Seeds(store, keys))

    async def claim(self, task_id: str, run: int = 1) -> Claim:
        ref = RunRef(task_id, run)
        claim = await self.store.run(
            claim_run(self.keys, ref, token=f"token{run}", runner="r", lease_us=LEASE_US, working=True)
        )
        assert isinstance(claim, Claim)
        return claim


@asynccontextmanager
async def serving(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, **settings: Any) -> AsyncIterator[Site]:
    """Run a gateway with authentication."""
    users = [api_key_entry("ann", "one"), api_key_entry("bob", "two")]
    async with local_gateway(store, redis_server.store_url, keys, auth_api_keys=users, **settings) as gateway:
        yield Site(gateway.http, store, keys)


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    """Gateway without limits."""
    async with serving(store, redis_server, keys) as site:
        yield site


def reason(reply: httpx.Response) -> str:
    text: str = reply.json()["error"]["details"][0]["reason"]
    return text


async def test_a_signal_resumes_the_run_and_publishes_it(site: Site) -> None:
    task_id = await site.ann.task()
    await site.suspensions.suspend_run(await site.claim(task_id), wait_for("approval"))

    reply = await site.ann.signal(task_id, {"name": "approval", "payload": {"by": "ann"}})

    assert (reply.status_code, reply.json()) == (202, {"taskId": task_id, "resumed": True})

    async def is_published() -> bool:
        published_at: bytes | None = await site.store.redis.hget(site.keys.task(task_id).record, "published_at")
        return published_at is not None and published_at.startswith(b"2 ")

    await eventually_async(is_published, what="the next run is published")
    claim = await site.claim(task_id, 2)
    assert claim.journal.entries is not None
    assert claim.journal.entries["approval#1"].content == b'{"sender":"client","payload":{"by":"ann"}}'


async def test_a_signal_without_a_waiting_run_is_stored_once(site: Site) -> None:
    task_id = await site.ann.task()
    body = {"name": "go", "signalId": "order 17"}

    replies = [await site.ann.signal(task_id, body) for _ in range(3)]

    assert [(reply.status_code, reply.json()["resumed"]) for reply in replies] == [(202, False)] * 3
    claim = await site.claim(task_id)
    assert await site.suspensions.take_signal(claim, "go") is not None
    assert await site.suspensions.take_signal(claim, "go", 2) is None


async def test_only_the_owner_of_a_task_sends_signals(site: Site) -> None:
    task_id = await site.ann.task()
    body = {"name": "go"}

    strangers = [await site.bob.signal(task_id, body), await site.ann.signal("unknown", body)]
    assert [(reply.status_code, reason(reply)) for reply in strangers] == [(404, "TASK_NOT_FOUND")] * 2
    assert (await Caller(site.http, "no key").signal(task_id, body)).status_code == 401
    assert not await site.store.redis.exists(site.keys.task(task_id).signals)


async def test_a_client_sends_only_the_signals_that_the_agent_lists(site: Site) -> None:
    task_id = await site.ann.task()

    reply = await site.ann.signal(task_id, {"name": "release"})

    assert (reply.status_code, reason(reply)) == (400, "UNSUPPORTED_OPERATION")
    assert reply.json()["error"]["message"] == "This agent does not accept the signal 'release' from clients."
    assert not await site.store.redis.exists(site.keys.task(task_id).signals)


async def test_at_the_root_the_tenant_names_the_agent(site: Site) -> None:
    task_id = await site.ann.task()

    replies = [await Caller(site.http, "one", path).signal(task_id, {"name": "go"}) for path in ("", "/echo", "/other")]

    assert [reply.status_code for reply in replies] == [202, 202, 404]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "JSON object"),
        ({}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": 7}, "name"),
        ({"name": "go", "payload": "x" * MAX_PAYLOAD_BYTES}, "payload"),
        ({"name": "go", "signalId": ""}, "signalId"),
        ({"name": "go", "signalId": None}, "signalId"),
        ({"name": "go", "value": 1}, "value"),
    ],
)
async def test_an_invalid_signal_is_refused_by_its_field(site: Site, body: Any, field: str) -> None:
    task_id = await site.ann.task()

    reply = await site.ann.signal(task_id, body)

    assert reply.status_code == 400
    assert field in reply.text
    assert not await site.store.redis.exists(site.keys.task(task_id).signals)


async def test_a_task_that_has_ended_or_is_full_refuses_signals(site: Site) -> None:
    task_id = await site.ann.task()
    seeds = site.suspensions.seeds
    for number in range(MAX_STORED_SIGNALS):
        await site.suspensions.send_signal(task_id, "go", str(number).encode())

    full = await site.ann.signal(task_id, {"name": "go"})
    await seeds.settle_run(await site.claim(task_id), status(COMPLETED))
    response = await site.ann.signal(task_id, {"name": "go"})

    assert [(reply.status_code, reason(reply)) for reply in (full, response)] == [(400, "UNSUPPORTED_OPERATION")] * 2
    assert "is COMPLETED" in response.text


async def test_a_repeated_signal_is_accepted_after_the_end_of_the_task(site: Site) -> None:
    """The client of a lost response cannot know that the task has ended."""
    task_id, signal = await site.ann.task(), {"name": "go", "signalId": "first"}
    replies = [await site.ann.signal(task_id, signal)]
    await site.suspensions.seeds.settle_run(await site.claim(task_id), status(COMPLETED))
    replies += [await site.ann.signal(task_id, signal), await site.ann.signal(task_id, signal | {"signalId": "second"})]

    assert [reply.status_code for reply in replies] == [202, 202, 400]
    assert replies[0].json() == replies[1].json()


@pytest.mark.parametrize("agent", ["executor", "resizer"])
async def test_an_agent_that_is_no_function_refuses_signals(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, agent: str
) -> None:
    app = Celery("executors", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix)
    a2a = A2A(app)
    a2a.add_agent(card("executor"), "acme.agents:Executor")

    def resize() -> None:
        """Resize an image."""

    a2a.expose(app.task(resize, shared=False), name="resizer")
    asgi = build_asgi(app, a2a.agents, a2a.settings, SYSTEM_CLOCK)
    await store.redis.hset(keys.installation, "schema", SCHEMA)
    async with (
        asgi.router.lifespan_context(asgi),
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test", timeout=LIMIT) as http,
    ):
        caller = Caller(http, "", f"/agents/{agent}")
        task_id = await Seeds(store, keys).create_task(scope=Scope(agent, "", ""))

        reply = await caller.signal(task_id, {"name": "go"})

    assert (reply.status_code, reason(reply)) == (400, "UNSUPPORTED_OPERATION")
    assert "only function agents can" in reply.text
    assert not await store.redis.exists(keys.task(task_id).signals)


async def test_a_signal_counts_as_a_request_and_its_bytes_are_limited(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    rate = {"owner_requests_per_second": 0.01, "owner_request_burst": 2}
    async with serving(store, redis_server, keys, **rate) as site:
        task_id = await site.ann.task()
        replies = [await site.ann.signal(task_id, {"name": "go"}) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [202, 429]
    await store.redis.flushall()
    async with serving(store, redis_server, keys, task_max_bytes=5_000) as site:
        task_id = await site.ann.task()
        large = await site.ann.signal(task_id, {"name": "go", "payload": "x" * 5_000})
        assert (large.status_code, reason(large)) == (400, "UNSUPPORTED_OPERATION")
    await store.redis.flushall()
    async with serving(store, redis_server, keys, owner_max_stored_bytes=5_000) as site:
        task_id = await site.ann.task()
        assert (await site.ann.signal(task_id, {"name": "go", "payload": "x" * 5_000})).status_code == 429


async def test_above_the_watermark_a_signal_is_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with serving(store, redis_server, keys, store_watermark=None) as site:
        task_id = await site.ann.task()
    await store.redis.config_set("maxmemory", "1gb")
    try:
        async with serving(store, redis_server, keys, store_watermark=1e-5) as site:
            reply = await site.ann.signal(task_id, {"name": "go"})
    finally:
        await store.redis.config_set("maxmemory", "0")

    assert (reply.status_code, reply.json()["error"]["details"][0]["metadata"]["limit"]) == (429, "memory")
    assert not await store.redis.exists(keys.task(task_id).signals)
