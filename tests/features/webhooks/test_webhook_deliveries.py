"""Deliveries, replays and pings that the owner of a webhook reads and requests over HTTP. No watcher runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.webhooks.deliveries import (
    MAX_REQUESTED_POSTS,
    Attempt,
    abandon_delivery,
    acquire_requested_posts,
    postpone_delivery,
    record_delivery,
)
from a2a_celery.lifecycle import EventId
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import local_gateway
from tests.support.receivers.posts import SECRET, SECRET_KEY
from tests.support.store.delivery_cursors import LEASE_US, Webhooks

HOUR_US = 3_600_000_000
CREDENTIALS = "s3cret-cr3dentials"


class Caller:
    """Caller of the gateway over HTTP+JSON."""

    def __init__(self, http: httpx.AsyncClient, key: str, tenant: str = "") -> None:
        self._http = http
        self._key = key
        self._below = f"/agents/echo/{tenant}" if tenant else "/agents/echo"

    async def get(self, path: str) -> httpx.Response:
        return await self._http.get(self._below + path, headers=self._headers)

    async def delete(self, path: str) -> httpx.Response:
        return await self._http.delete(self._below + path, headers=self._headers)

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self._http.post(self._below + path, json=body, headers=self._headers)

    async def task(self) -> str:
        """Send a message with a webhook "c", and return the id of its task."""
        hook = {
            "id": "c",
            "url": "http://127.0.0.1:9/hook?token=in-the-url",
            "token": SECRET,
            "authentication": {"scheme": "Bearer", "credentials": CREDENTIALS},
        }
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": hook}
        answer = await self.post("/message:send", message_json("hello") | {"configuration": configuration})
        task_id: str = answer.json()["task"]["id"]
        return task_id

    @property
    def _headers(self) -> dict[str, str]:
        return {"A2A-Version": "1.0", "X-API-Key": self._key}


class Site:
    """Gateway with its callers and its store."""

    def __init__(self, http: httpx.AsyncClient, store: AsyncStore, keys: Keys) -> None:
        self.http, self.store, self.keys = http, store, keys
        self.alice, self.bob = Caller(http, "one"), Caller(http, "two")
        self.webhooks = Webhooks(store, keys)

    async def event_id(self, task_id: str, version: int) -> EventId:
        page = await self.store.run(read_log(self.keys, task_id, version - 1, limit=1))
        return page.entries[0].id


@asynccontextmanager
async def serving(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, **settings: Any) -> AsyncIterator[Site]:
    users = [api_key_entry("alice", "one"), api_key_entry("bob", "two"), api_key_entry("alice", "three", "acme")]
    options = {"secret_key": SECRET_KEY, "allow_networks": ["127.0.0.0/8"], "auth_api_keys": users, **settings}
    async with local_gateway(store, redis_server.store_url, keys, **options) as gateway:
        yield Site(gateway.http, store, keys)


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    async with serving(store, redis_server, keys) as site:
        yield site


async def test_the_owner_reads_what_became_of_the_posts_and_no_secret(site: Site) -> None:
    task_id = await site.alice.task()
    cursor = await site.webhooks.lease_cursor()
    event = str(await site.event_id(task_id, 1))
    failed_attempt = Attempt(event, "failed", 500, 31, "answered 500")
    failure = {"reason": "10.0.0.7 said no", "status": 500, "answer": "the body of the receiver"}
    postponement = postpone_delivery(
        site.keys, cursor, after_us=HOUR_US, counts=True, failure=failure, attempt=failed_attempt
    )
    await site.store.run(postponement)

    answer = await site.alice.get(f"/webhooks/{task_id}/c/deliveries")

    body = answer.json()
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    [delivery] = body.pop("deliveries")
    assert delivery.pop("time") < delivery["nextTry"]
    assert delivery.pop("nextTry") == body.pop("nextTry")
    assert delivery == {"event": event, "outcome": "failed", "status": 500, "latencyMs": 31, "reason": "answered 500"}
    assert body == {
        "taskId": task_id, "id": "c", "state": "failing", "delivered": 0, "lastEvent": 1, "failures": 1,
        "requested": [],
    }  # fmt: skip
    for secret in ("10.0.0.7", "the body", SECRET, CREDENTIALS, "in-the-url", "sealed"):
        assert secret not in answer.text


async def test_a_failed_delivery_is_due_at_once_after_a_replay(site: Site) -> None:
    task_id = await site.alice.task()
    cursor = await site.webhooks.lease_cursor()
    await site.store.run(abandon_delivery(site.keys, cursor, failure={"reason": "no"}, attempt=None))
    given_up = (await site.alice.get(f"/webhooks/{task_id}/c/deliveries")).json()
    assert (given_up["state"], "givenUpAt" in given_up) == ("dead", True)

    answer = await site.alice.post(f"/webhooks/{task_id}/c/deliveries:replay")

    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
    assert (await site.webhooks.lease_cursor()).delivered == 0
    second_answer = await site.alice.post(f"/webhooks/{task_id}/c/deliveries:replay")
    assert second_answer.status_code == 202, "nothing failed: nothing happens"


async def test_an_event_that_was_delivered_is_requested_by_its_id(site: Site) -> None:
    task_id = await site.alice.task()
    event = await site.event_id(task_id, 1)
    attempt = Attempt(str(event), "delivered", 200, 5)
    cursor = await site.webhooks.lease_cursor()
    await site.store.run(record_delivery(site.keys, cursor, event, lease_us=LEASE_US, attempt=attempt))

    for name in (str(event), "1"):  # a version alone is valid too, and the post is requested once
        answer = await site.alice.post(f"/webhooks/{task_id}/c/deliveries/{name}:replay")
        assert (answer.status_code, answer.json()["requested"]) == (202, [str(event)])

    [(cursor_taken, posts)] = await site.store.run(acquire_requested_posts(site.keys, limit=9, lease_us=LEASE_US))
    assert (cursor_taken.config_id, posts) == ("c", [str(event)])


@pytest.mark.parametrize(
    ("event", "status", "error"),
    [
        ("99", 400, "Event 99 cannot be delivered again: the task's log does not contain the event"),
        ("1-5", 400, "Event 1-5 cannot be delivered again"),
        ("0", 400, "Event 0 cannot be delivered again"),
        ("ping-1", 400, "event: Send the id of an event"),
    ],
)
async def test_a_missing_event_is_refused_with_the_reason(site: Site, event: str, status: int, error: str) -> None:
    task_id = await site.alice.task()

    answer = await site.alice.post(f"/webhooks/{task_id}/c/deliveries/{event}:replay")

    assert (answer.status_code, answer.json()["error"]["message"][: len(error)]) == (status, error)
    assert await site.store.run(acquire_requested_posts(site.keys, limit=9, lease_us=LEASE_US)) == []


async def test_an_event_that_the_webhook_does_not_want_is_refused(site: Site) -> None:
    task_id = await site.alice.task()
    path = f"/agents/echo/tasks/{task_id}/pushNotificationConfigs"
    headers = {"A2A-Version": "1.0", "X-API-Key": "one", "A2A-Push-Events": "terminal"}
    response = await site.http.post(path, json={"id": "last", "url": "http://127.0.0.1:9/hook"}, headers=headers)
    assert response.status_code == 200

    answer = await site.alice.post(f"/webhooks/{task_id}/last/deliveries/1:replay")

    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Event 1 is not delivered to this webhook")


async def test_a_ping_has_a_separate_id(site: Site) -> None:
    task_id = await site.alice.task()

    answers = [await site.alice.post(f"/webhooks/{task_id}/c:ping") for _ in range(2)]

    pings = [answer.json()["ping"] for answer in answers]
    assert {answer.status_code for answer in answers} == {202}
    assert len(set(pings)) == 2
    assert answers[-1].json()["requested"] == pings


async def test_the_number_of_waiting_pings_is_limited(site: Site) -> None:
    task_id = await site.alice.task()

    answers = [await site.alice.post(f"/webhooks/{task_id}/c:ping") for _ in range(MAX_REQUESTED_POSTS + 1)]

    assert [answer.status_code for answer in answers] == [202] * MAX_REQUESTED_POSTS + [429]
    assert answers[-1].headers["retry-after"] == "5"


OPERATIONS = [
    ("GET", "/webhooks/{task}/{config}/deliveries"),
    ("POST", "/webhooks/{task}/{config}/deliveries:replay"),
    ("POST", "/webhooks/{task}/{config}/deliveries/1:replay"),
    ("POST", "/webhooks/{task}/{config}:ping"),
]


async def call(caller: Caller, verb: str, path: str, task: str, config: str = "c") -> httpx.Response:
    url = path.format(task=task, config=config)
    return await (caller.get(url) if verb == "GET" else caller.post(url))


@pytest.mark.parametrize(("verb", "path"), OPERATIONS)
async def test_webhooks_of_other_callers_are_missing(site: Site, verb: str, path: str) -> None:
    task_id = await site.alice.task()
    strangers = [
        await call(site.bob, verb, path, task_id),
        await call(Caller(site.http, "three", "acme"), verb, path, task_id),  # alice, in a tenant
        await call(site.alice, verb, path, task_id, "other"),
        await call(site.alice, verb, path, "nobody"),
    ]

    assert {answer.status_code for answer in strangers} == {404}
    assert {answer.json()["error"]["details"][0]["reason"] for answer in strangers} == {"TASK_NOT_FOUND"}
    assert (await call(Caller(site.http, "three", "beta"), verb, path, task_id)).status_code == 403
    assert (await call(Caller(site.http, "no key"), verb, path, task_id)).status_code == 401
    delivery = await site.webhooks.delivery(task_id)
    assert (delivery.requested, delivery.delivered) == ((), 0)


async def test_the_tenants_own_webhook_is_reached_by_the_tenants_path(site: Site) -> None:
    caller = Caller(site.http, "three", "acme")
    task_id = await caller.task()

    assert (await caller.post(f"/webhooks/{task_id}/c:ping")).status_code == 202
    assert (await site.alice.get(f"/webhooks/{task_id}/c/deliveries")).status_code == 404


async def test_at_the_root_the_tenant_names_the_agent(site: Site) -> None:
    task_id = await site.alice.task()
    headers = {"A2A-Version": "1.0", "X-API-Key": "one"}
    path = f"/webhooks/{task_id}/c/deliveries"

    answers = [await site.http.get(below + path, headers=headers) for below in ("", "/echo", "/other")]

    assert [answer.status_code for answer in answers] == [200, 200, 404]


@pytest.mark.parametrize(("verb", "path"), OPERATIONS)
async def test_without_push_notifications_it_is_refused(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, verb: str, path: str
) -> None:
    async with serving(store, redis_server, keys, secret_key=None) as site:
        answer = await call(site.alice, verb, path, "nobody")

    assert answer.json()["error"]["details"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_each_counts_as_a_request_of_its_caller(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    rate = {"owner_requests_per_second": 0.01, "owner_request_burst": 1 + len(OPERATIONS)}
    async with serving(store, redis_server, keys, **rate) as site:
        task_id = await site.alice.task()
        first_statuses = [(await call(site.alice, verb, path, task_id)).status_code for verb, path in OPERATIONS]
        statuses = [(await call(site.alice, verb, path, task_id)).status_code for verb, path in OPERATIONS]

    assert first_statuses == [200, 202, 202, 202]
    assert statuses == [429] * len(OPERATIONS)


async def test_a_webhook_with_a_slash_in_its_id_is_read_tested_and_deleted(site: Site) -> None:
    task_id = await site.alice.task()
    configs, escaped = f"/tasks/{task_id}/pushNotificationConfigs", "team%2Fhook"
    config = (await site.alice.post(configs, {"id": "team/hook", "url": "http://127.0.0.1:9/hook"})).json()
    others = await site.alice.get(configs)

    answers = [
        await site.alice.get(f"{configs}/{escaped}"),
        await site.alice.get(f"/webhooks/{task_id}/{escaped}/deliveries"),
        await site.alice.post(f"/webhooks/{task_id}/{escaped}:ping"),
        await site.alice.delete(f"{configs}/{escaped}"),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 202, 200]
    assert answers[0].json()["id"] == config["id"] == "team/hook"
    assert len(others.json()["configs"]) == 2
    assert [each["id"] for each in (await site.alice.get(configs)).json()["configs"]] == ["c"]
    assert (await site.alice.get(f"{configs}/{escaped}")).status_code == 404
