"""Operator API: its permissions, the data of other owners' tasks that it shows, and the changes that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import ConfigError
from a2a_celery.features.webhooks.deliveries import abandon_delivery
from a2a_celery.gateway.auth.from_settings import authenticator_from_settings
from a2a_celery.gateway.middleware.json_endpoint import MAX_BODY
from a2a_celery.gateway.operator.api import PATH
from a2a_celery.gateway.operator.stored_tasks import MAX_FAILURES, SCOPES
from a2a_celery.lifecycle import Failure, final_event
from a2a_celery.lifecycle.outcomes import OUT_OF_TIME
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, FAILED, SUBMITTED, WORKING
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.watcher.sampler import Sampler
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import local_gateway
from tests.support.receivers.posts import SECRET_KEY
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import CONTEXT, Seeds, status

HOOK = "a/50%25 hook"
"""Id of a webhook that contains a slash and an escape sequence of URLs."""

SECRET_TEXT = "a text that only its owner may read"
USERS = [api_key_entry("ops", "operator-key"), api_key_entry("bob", "bob-key")]
BOB = Scope(agent="echo", owner="bob")


class Site:
    """Gateway with an operator and a plain caller."""

    def __init__(self, http: httpx.AsyncClient, store: AsyncStore, keys: Keys) -> None:
        self.http, self.store, self.keys = http, store, keys
        self.seeds = Seeds(store, keys)

    async def get(self, path: str, key: str = "operator-key") -> httpx.Response:
        return await self.http.get(PATH + path, headers={"X-API-Key": key})

    async def post(self, path: str, key: str = "operator-key") -> httpx.Response:
        return await self.http.post(PATH + path, headers={"X-API-Key": key})

    async def send(self) -> str:
        """Send a message with a webhook as Bob. Return the task's id."""
        hook = {"id": HOOK, "url": "http://127.0.0.1:9/secret-address", "token": "secret-token"}
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": hook}
        headers = {"A2A-Version": "1.0", "X-API-Key": "bob-key"}
        body = message_json(SECRET_TEXT) | {"configuration": configuration}
        answer = await self.http.post("/agents/echo/message:send", json=body, headers=headers)
        task_id: str = answer.json()["task"]["id"]
        return task_id

    async def give_up_post(self) -> str:
        """Create a task with a webhook whose delivery was given up. Return the task's id."""
        task_id = await self.send()
        cursor = await Webhooks(self.store, self.keys).lease_cursor()
        failure: dict[str, str | int] = {"reason": "answered 410", "status": 410, "answer": "the body of the receiver"}
        failure["address"] = "hooks.internal is 10.1.2.3"
        await self.store.run(abandon_delivery(self.keys, cursor, failure=failure))
        return task_id

    async def dead_letter(self) -> str:
        claim = await self.seeds.claim_run(scope=BOB)
        await self.seeds.recover_run(claim.ref)
        return claim.ref.task_id


@asynccontextmanager
async def serving(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, **settings: Any) -> AsyncIterator[Site]:
    options = {"secret_key": SECRET_KEY, "allow_networks": ["127.0.0.0/8"], "ui": True, **settings}
    async with local_gateway(store, redis_server.store_url, keys, **options) as gateway:
        yield Site(gateway.http, store, keys)


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    options: dict[str, Any] = {"auth_api_keys": USERS, "operators": ["ops"]}
    async with serving(store, redis_server, keys, **options) as site:
        yield site


READS = (
    "/overview",
    "/history",
    "/tasks",
    "/tasks/x",
    "/dead-letters",
    "/webhooks",
    "/workers",
    "/schedules",
    "/tasks?phase=all",
    "/tasks?phase=any&owner=bob",
)
WRITES = ("/dead-letters/x:requeue", "/webhooks/x/c:replay")


async def test_only_an_operator_may_use_it(site: Site) -> None:
    for key, status_code, reason in (("bob-key", 403, "PERMISSION_DENIED"), ("wrong", 401, "UNAUTHENTICATED")):
        answers = [await site.get(path, key) for path in READS] + [await site.post(path, key) for path in WRITES]

        assert {answer.status_code for answer in answers} == {status_code}
        assert {answer.json()["error"]["details"][0]["reason"] for answer in answers} == {reason}
    refusal = await site.get("/overview", "bob-key")
    assert refusal.json()["error"]["message"] == (
        "The operator's role is required, and the owner 'bob' is not in a2a_operators"
    )


@pytest.mark.parametrize(("operators", "expected"), [([], 403), (["ops"], 403), (["*"], 200)])
async def test_without_authentication_only_a_star_gives_the_role(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, operators: list[str], expected: int
) -> None:
    async with serving(store, redis_server, keys, operators=operators) as site:
        answer = await site.http.get(f"{PATH}/overview", headers={"Host": "localhost"})
        response = await site.http.get("/ui/agents.json", headers={"Host": "localhost"})

    assert answer.status_code == expected
    assert response.json()["operator"] is (expected == 200)


async def test_a_page_of_another_origin_cannot_requeue(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with serving(store, redis_server, keys, operators=["*"]) as site:
        headers = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
        answer = await site.http.post(f"{PATH}/dead-letters/x:requeue", headers=headers)

    assert answer.status_code == 403


def test_a_star_is_refused_with_authentication() -> None:
    settings = Settings(auth_api_keys=USERS, operators=["*"])

    with pytest.raises(ConfigError, match="a2a_operators contains \\*"):
        authenticator_from_settings(settings)


async def test_the_page_learns_who_asks(site: Site) -> None:
    for key, owner, operator in (("operator-key", "ops", True), ("bob-key", "bob", False)):
        agents = (await site.http.get("/ui/agents.json", headers={"X-API-Key": key})).json()

        assert (agents["owner"], agents["operator"]) == (owner, operator)


async def test_the_overview_counts_the_tasks_of_all_owners(site: Site) -> None:
    await site.send()
    await site.dead_letter()

    overview = (await site.get("/overview")).json()

    assert overview["runs"]["queued"] == 1
    assert overview["deadLetters"] == 1
    assert overview["agents"]["echo"]["ended"]["TASK_STATE_FAILED"] == 1
    assert overview["agents"]["echo"]["lost"] == 1
    assert overview["agents"]["other"]["ended"]["TASK_STATE_COMPLETED"] == 0
    assert len(overview["times"]["run"]) == len(overview["bounds"]) + 1
    assert overview["webhooks"]["waiting"] == 1


async def test_open_tasks_of_all_owners_are_listed_by_phase_without_their_contents(site: Site) -> None:
    waiting = await site.send()
    claim = await site.seeds.claim_run(scope=BOB, max_attempts=3)

    queued_tasks = await site.get("/tasks?phase=queued")
    [running] = (await site.get("/tasks?phase=running")).json()["tasks"]

    [task] = queued_tasks.json()["tasks"]
    assert (task["id"], task["owner"], task["agent"], task["state"], task["maxAttempts"]) == (
        waiting, "bob", "echo", "TASK_STATE_SUBMITTED", None,
    )  # fmt: skip
    assert (running["id"], running["worker"], running["maxAttempts"]) == (claim.ref.task_id, "runner", 3)
    assert SECRET_TEXT not in queued_tasks.text


@pytest.mark.parametrize("query", ["phase=ended", "cursor=-1", "cursor=x", "cursor=" + "9" * 30, f"cursor={2**64}"])
async def test_a_wrong_parameter_is_named(site: Site, query: str) -> None:
    answer = await site.get(f"/tasks?{query}")

    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/tasks", "/webhooks", "/dead-letters"])
async def test_a_cursor_is_at_most_the_largest_of_redis(site: Site, path: str) -> None:
    statuses = [(await site.get(f"{path}?cursor={cursor}")).status_code for cursor in (2**64 - 1, 2**64, 10**20 - 1)]

    assert statuses == [200, 400, 400]


async def test_every_page_is_bounded_and_all_pages_have_all_tasks(site: Site) -> None:
    ids = {await site.seeds.create_task(BOB) for _ in range(450)}

    task_ids: list[str] = []
    cursor, sizes = 0, []
    while cursor is not None:
        answer = await site.get(f"/tasks?phase=queued&cursor={cursor}")
        task_ids += [task["id"] for task in answer.json()["tasks"]]
        cursor = answer.json()["next"]
        sizes.append(len(answer.content))

    assert set(task_ids) == ids
    assert max(sizes) < 256 * 1024
    assert len(sizes) > 1


async def test_a_webhook_that_was_given_up_is_replayed_and_its_address_stays_hidden(site: Site) -> None:
    task_id = await site.give_up_post()

    given_up = await site.get("/webhooks?state=dead")
    [webhook] = given_up.json()["webhooks"]
    assert (webhook["task"], webhook["id"], webhook["state"]) == (task_id, HOOK, "dead")
    assert (webhook["reason"], webhook["status"]) == ("answered 410", 410)
    for secret in ("secret-address", "secret-token", "the body", "hooks.internal"):
        assert secret not in given_up.text

    replay = await site.post(f"/webhooks/{task_id}/{quote(HOOK, safe='')}:replay")
    assert (replay.json()["replayed"], replay.json()["state"]) == (True, "waiting")
    assert (await site.get("/webhooks?state=dead")).json()["webhooks"] == []
    assert [webhook["id"] for webhook in (await site.get("/webhooks")).json()["webhooks"]] == [HOOK]
    assert (await site.post(f"/webhooks/{task_id}/other:replay")).status_code == 404


async def test_a_timeline_has_steps_events_and_webhooks_and_no_text(site: Site) -> None:
    task_id = await site.send()
    claim = await site.seeds.claim_run(task_id)
    await site.seeds.append_events(claim, status(WORKING, SECRET_TEXT))

    answer = await site.get(f"/tasks/{task_id}")

    body = answer.json()
    assert body["task"] | {"now": ""} == {
        "id": task_id, "agent": "echo", "tenant": "", "owner": "bob", "contextId": body["task"]["contextId"],
        "state": "TASK_STATE_WORKING", "run": 1, "running": True, "deadLetter": False, "version": "", "now": "",
        "traceId": "", "isOwner": False,
    }  # fmt: skip
    assert [(event["kind"], event["first"], event.get("state")) for event in body["events"]] == [
        ("task", 1, "TASK_STATE_SUBMITTED"),
        ("status", 2, "TASK_STATE_WORKING"),
        ("status", 3, "TASK_STATE_WORKING"),
    ]
    assert [webhook["id"] for webhook in body["webhooks"]] == [HOOK]
    assert (body["parent"], body["children"]) == (None, [])
    assert SECRET_TEXT not in answer.text
    assert (await site.get("/tasks/unknown")).status_code == 404


async def test_requests_are_counted_by_metrics_and_by_the_rate_limit(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    options: dict[str, Any] = {"auth_api_keys": USERS, "operators": ["ops"]}
    limits = {"owner_requests_per_second": 0.01, "owner_request_burst": 2}
    async with serving(store, redis_server, keys, **options, **limits) as site:
        answers = [await site.get("/overview") for _ in range(3)]
        metrics = (await site.http.get("/metrics", headers={"X-API-Key": "bob-key"})).text

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) > 0
    for outcome, number in (("ok", "2.0"), ("LimitExceededError", "1.0")):
        labels = f'agent="",operation="OperatorOverview",outcome="{outcome}"'
        assert f"a2a_gateway_requests_total{{{labels}}} {number}" in metrics


async def test_a_large_body_is_refused(site: Site) -> None:
    headers = {"X-API-Key": "operator-key", "Content-Type": "application/json"}

    answer = await site.http.post(f"{PATH}/dead-letters/x:requeue", content=b"1" * (MAX_BODY + 1), headers=headers)

    assert answer.status_code == 413


async def test_a_tenant_named_operator_keeps_its_tasks(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    async with serving(store, redis_server, keys, operators=["*"]) as site:
        headers = {"A2A-Version": "1.0", "Host": "localhost"}
        answer = await site.http.get("/agents/echo/operator/tasks", headers=headers)

    assert answer.status_code == 200
    assert answer.json()["tasks"] == []


async def pages(site: Site, query: str) -> list[list[str]]:
    """Return the ids of the tasks on each page of the phase in `query`, by default "any"."""
    pages: list[list[str]] = []
    cursor, cursors = 0, set()
    while cursor is not None:
        assert cursor not in cursors, "a page refers to an earlier page"
        cursors.add(cursor)
        phase = "" if query.startswith("phase=") else "phase=any&"
        page = (await site.get(f"/tasks?{phase}{query}&cursor={cursor}")).json()
        pages.append([task["id"] for task in page["tasks"]])
        cursor = page["next"]
    return pages


async def test_open_and_ended_tasks_of_an_owner_are_listed_newest_first(site: Site) -> None:
    ended_id = await site.seeds.create_task_in(COMPLETED, scope=BOB)
    waiting = await site.send()
    other = await site.seeds.create_task(Scope(agent="other", owner="bob"))
    for scope in (Scope(agent="echo", owner="ann"), Scope(agent="echo", tenant="acme", owner="bob")):
        await site.seeds.create_task(scope)

    assert await pages(site, "owner=bob") == [[other, waiting, ended_id]]
    assert await pages(site, "owner=bob&agent=echo") == [[waiting, ended_id]]
    assert await pages(site, "owner=bob&state=TASK_STATE_COMPLETED") == [[ended_id]]
    assert len((await pages(site, "owner=bob&tenant=acme"))[0]) == 1
    assert await pages(site, "owner=nobody") == [[]]


async def test_the_newest_failed_tasks_of_all_owners_are_listed(site: Site) -> None:
    failed_ids = [
        await site.seeds.create_task_in(FAILED, scope=Scope(agent="echo", owner=str(i % 3)))
        for i in range(MAX_FAILURES)
    ]
    await site.seeds.create_task_in(COMPLETED, scope=BOB)
    lost_id = await site.dead_letter()

    page = (await site.get("/tasks?phase=failed")).json()

    assert [task["id"] for task in page["tasks"]] == [lost_id, *failed_ids[:0:-1]], "the oldest one makes room"
    assert page["next"] is None


async def test_tasks_of_all_owners_are_listed_newest_first(site: Site) -> None:
    scopes = [
        BOB,
        Scope(agent="echo"),
        Scope(agent="other", tenant="acme", owner="bob"),
        Scope(agent="echo", owner="ann"),
    ]
    waiting = [await site.seeds.create_task(scope) for scope in scopes]
    ended = await site.seeds.create_task_in(COMPLETED, scope=scopes[1])
    failed = await site.seeds.create_task_in(FAILED, scope=BOB)
    by_bob, by_none, in_acme, by_ann = waiting

    assert await pages(site, "phase=all") == [[failed, ended, *waiting[::-1]]]
    assert await pages(site, "phase=all&agent=other") == [[in_acme]]
    assert await pages(site, "phase=all&owner=bob") == [[failed, in_acme, by_bob]]
    assert await pages(site, "phase=all&owner=bob&tenant=") == [[failed, by_bob]]
    assert await pages(site, "phase=all&owner=") == [[ended, by_none]]
    assert await pages(site, "phase=all&state=TASK_STATE_SUBMITTED&owner=ann") == [[by_ann]]
    assert await pages(site, "phase=all&owner=nobody") == [[]]


@pytest.mark.parametrize("query", ["phase=all", "phase=any&owner=bob"])
async def test_stored_tasks_are_filtered_by_the_time_of_their_status(site: Site, query: str) -> None:
    ids = [await site.seeds.create_task(BOB) for _ in range(3)]
    [*_, second, _] = (await site.get(f"/tasks?{query}")).json()["tasks"]
    at_us = int(await site.store.redis.hget(site.keys.task(second["id"]).record, "at"))
    at = quote(datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds"))

    assert await pages(site, f"{query}&after={at}") == [ids[:0:-1]]
    assert await pages(site, f"{query}&before={at}") == [ids[1::-1]]
    assert await pages(site, f"{query}&after=2999-01-01") == [[]]


async def test_pages_have_each_task_of_many_owners_once(site: Site) -> None:
    owners = [f"owner {i * i % 509}" for i in range(320)]
    assert len(set(owners)) > SCOPES[0]
    ids = [await site.seeds.create_task(Scope(agent="echo", owner=owner)) for owner in owners]

    id_pages = await pages(site, "phase=all")

    assert [task for page in id_pages for task in page] == ids[::-1]
    assert [len(page) for page in id_pages] == [*[50] * 6, 20]


async def test_the_cost_of_the_first_page_does_not_depend_on_the_number_of_tasks_and_owners(site: Site) -> None:
    async def calls() -> int:
        stats = await site.store.redis.info("commandstats")
        before = sum(stat["calls"] for stat in stats.values())
        await site.get("/tasks?phase=all")
        stats = await site.store.redis.info("commandstats")
        return sum(stat["calls"] for stat in stats.values()) - before

    async def create(owners: range) -> None:
        await asyncio.gather(*(site.seeds.create_task(Scope(agent="echo", owner=str(owner))) for owner in owners))

    await create(range(100))
    await calls()  # loads the scripts
    early_calls = await calls()
    await create(range(100, 800))
    await create(range(800))

    assert await calls() <= 1.2 * early_calls


async def test_failures_have_a_reason_and_no_text_of_the_agent(site: Site) -> None:
    lost_id = await site.dead_letter()
    for text in (SECRET_TEXT, OUT_OF_TIME, SECRET_TEXT * 200):
        claim = await site.seeds.claim_run(scope=BOB)
        await site.seeds.settle_run(claim, status(FAILED, text))
    failure = final_event(Failure(reference="0123456789ab"), "", CONTEXT)
    assert failure is not None
    await site.seeds.settle_run(await site.seeds.claim_run(scope=BOB), failure)

    answer = await site.get("/tasks?phase=failed")
    [dead_letter] = (await site.get("/dead-letters")).json()["tasks"]

    assert [(task["reason"], task["reference"], task["deadLetter"]) for task in answer.json()["tasks"]] == [
        ("exception", "0123456789ab", False),
        ("agent", "", False),
        ("time_limit", "", False),
        ("agent", "", False),
        ("lost", "", True),
    ]
    assert SECRET_TEXT not in answer.text
    assert (dead_letter["id"], dead_letter["reason"]) == (lost_id, "lost")
    await site.post(f"/dead-letters/{lost_id}:requeue")
    [*_, requeued] = (await site.get("/tasks?phase=failed")).json()["tasks"]
    assert (requeued["reason"], requeued["deadLetter"]) == ("lost", False)


async def test_pages_have_each_task_of_an_owner(site: Site) -> None:
    ids = [await site.seeds.create_task(BOB) for _ in range(120)]

    id_pages = await pages(site, "owner=bob")

    assert [len(page) for page in id_pages] == [50, 50, 20]
    assert [task for page in id_pages for task in page] == ids[::-1]


async def test_pages_have_each_task_of_one_time_once(site: Site) -> None:
    older = await site.seeds.create_task(BOB)
    index = f"{site.keys.scope_index(BOB)}{SUBMITTED}"
    at = await site.store.redis.zscore(index, older)
    assert at is not None
    ids = [await site.seeds.create_task(BOB) for _ in range(120)]
    await site.store.redis.zadd(index, dict.fromkeys(ids, at + 1))

    id_pages = await pages(site, "owner=bob")

    assert [task for page in id_pages for task in page] == [*sorted(ids, reverse=True), older]


@pytest.mark.parametrize("cursor", ["1", "x", "{}", "eyJ0cyI6MSwiaWQiOiJcdWQ4MDAifQ", "W" * 4000])
async def test_a_wrong_cursor_of_stored_tasks_is_named(site: Site, cursor: str) -> None:
    answer = await site.get(f"/tasks?phase=any&cursor={cursor}")

    assert answer.status_code == 400
    assert "cursor" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("phase=any&state=ended", "state"),
        ("phase=any&schedule=x&owner=bob", "owner"),
        ("phase=any&schedule=x&agent=echo", "agent"),
        ("phase=all&state=ended", "state"),
        ("phase=all&after=yesterday", "after"),
        ("phase=all&before=1", "before"),
        ("phase=all&cursor=1", "cursor"),
        ("phase=all&schedule=nightly", "schedule"),
    ],
)
async def test_a_wrong_filter_is_named(site: Site, query: str, field: str) -> None:
    answer = await site.get(f"/tasks?{query}")

    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


async def test_the_history_has_the_recorded_samples_in_the_form_of_the_overview(site: Site) -> None:
    assert (await site.get("/history")).json()["samples"] == []
    await site.seeds.create_task_in(FAILED, scope=BOB)
    await site.give_up_post()
    await Sampler(site.store, site.keys).tick()

    history, day = [(await site.get(path)).json() for path in ("/history", "/history?range=day")]

    overview = (await site.get("/overview")).json()
    [sample] = history["samples"]
    assert (history["range"], history["intervalSeconds"], day["intervalSeconds"]) == ("hour", 60.0, 900.0)
    assert history["bounds"] == overview["bounds"]
    assert sample["ended"] == overview["agents"]["echo"]["ended"]
    for name in ("runs", "times"):
        assert sample[name] == overview[name]
    assert ("givenUp", 1) in sample["webhooks"].items() <= overview["webhooks"].items()
    assert sample["store"].keys() == overview["store"].keys()
    assert [sample["ended"] for sample in day["samples"]] == [sample["ended"]]


async def test_an_unknown_range_of_the_history_is_refused(site: Site) -> None:
    answer = await site.get("/history?range=week")

    assert answer.status_code == 400
    assert "Send one of hour, day." in answer.text
