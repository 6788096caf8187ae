"""Timeline of a task in the operator's API: its events, tokens and recorded calls, and who sees their contents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.journal import CallExecution, JournalEntry
from a2a_celery.lifecycle.own_metadata import own_metadata, retry_metadata
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.gateway.test_operator_api import BOB, SECRET_TEXT, USERS, Site, serving
from tests.support.clients.credentials import api_key_entry
from tests.support.store.seeds import chunk, status


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    async with serving(store, redis_server, keys, auth_api_keys=USERS, operators=["ops"]) as site:
        yield site


async def test_a_timeline_has_waits_tokens_and_one_item_for_each_artifact(site: Site) -> None:
    claim = await site.seeds.claim_run(scope=BOB)
    usage = {"m": {"inputTokens": 7, "outputTokens": 2, "note": SECRET_TEXT, "reasoningTokens": SECRET_TEXT}}
    chunks = [chunk(SECRET_TEXT, artifact) for artifact in ("a", "b", "a", "a")]
    await site.seeds.append_events(claim, *chunks, status(COMPLETED, **{"a2a_celery/usage": usage}))

    answer = await site.get(f"/tasks/{claim.ref.task_id}")

    body = answer.json()
    assert [(wait["kind"], wait["open"]) for wait in body["waits"]] == [("worker", False)]
    [first, second] = [event for event in body["events"] if event["kind"] == "artifact"]
    assert (first["first"], first["last"], first["chunks"]) == (3, 6, 3)
    assert (second["first"], second["last"], second["chunks"]) == (4, 4, 1)
    assert "name" not in first
    assert body["events"][-1]["usage"] == {"m": {"inputTokens": 7, "outputTokens": 2}}
    assert SECRET_TEXT not in answer.text


async def test_a_timeline_says_that_a_worker_was_lost_and_which_attempt_follows(site: Site) -> None:
    claim = await site.seeds.claim_run(scope=BOB, max_attempts=2)
    await site.seeds.recover_run(claim.ref)
    await site.seeds.claim_run(claim.ref.task_id, run=2, max_attempts=2)
    await site.seeds.recover_run(replace(claim.ref, run=2))

    events = (await site.get(f"/tasks/{claim.ref.task_id}")).json()["events"]

    assert [event.get("reason") for event in events] == [None, None, "lost", "lost"]
    assert (events[2]["state"], events[2]["attempt"], events[2]["maxAttempts"]) == ("TASK_STATE_WORKING", 2, 2)
    assert (events[3]["state"], "attempt" in events[3]) == ("TASK_STATE_FAILED", False)


async def test_a_retry_is_not_the_loss_of_a_worker(site: Site) -> None:
    claim = await site.seeds.claim_run(scope=BOB, max_attempts=3)
    retry = status(WORKING, **retry_metadata(2, 3, "2030-01-01T00:00:00Z", "timeout"))
    returned = status(WORKING, **own_metadata({"attempt": 2, "maxAttempts": 3, "returnedAttempt": 1}))
    await site.seeds.append_events(claim, retry, returned)

    events = (await site.get(f"/tasks/{claim.ref.task_id}")).json()["events"]

    assert [(event.get("attempt"), event.get("reason")) for event in events[-2:]] == [(2, None), (2, "returned")]


@pytest.mark.parametrize("metadata", ["text", [1], {"m": 1}, {"m": {"inputTokens": float(2**60)}}])
async def test_tokens_of_another_form_are_omitted(site: Site, metadata: Any) -> None:
    claim = await site.seeds.claim_run(scope=BOB)
    await site.seeds.append_events(claim, status(COMPLETED, **{"a2a_celery/usage": metadata}))

    events = (await site.get(f"/tasks/{claim.ref.task_id}")).json()["events"]

    assert events[-1].get("usage", {}) in ({}, {"m": {}})


async def test_a_timeline_names_the_events_that_it_omits(site: Site) -> None:
    claim = await site.seeds.claim_run(scope=BOB)
    await site.seeds.append_events(claim, *(chunk("a") for _ in range(400)))

    events = (await site.get(f"/tasks/{claim.ref.task_id}")).json()["events"]

    assert [(event["kind"], event["first"], event["last"]) for event in events[2:]] == [
        ("artifact", 3, 128), ("omitted", 129, 274), ("artifact", 275, 402),
    ]  # fmt: skip


RESULT = JournalEntry(
    "fetch#1", "step", "json", b'"' + b"x" * 3000 + b'"', 1, execution=CallExecution(1, 2, 10**15, 5000),
    arguments='["Rome"]',
)  # fmt: skip
FAILED_CALL = JournalEntry("tool(8f)#1", "tool", "failure", b'{"class":"builtins:ValueError","args":["why"]}')


@pytest.mark.parametrize("owner", ["ops", "bob"])
async def test_only_the_owner_sees_recorded_results(site: Site, owner: str) -> None:
    claim = await site.seeds.claim_run(scope=Scope(agent="echo", owner=owner))
    events = [chunk("text", "report"), RESULT, FAILED_CALL, JournalEntry("raw#2", "step", "bytes", b"\xff\x00", 2)]
    await site.seeds.append_events(claim, *events)

    body = (await site.get(f"/tasks/{claim.ref.task_id}")).json()

    fetch, raw = [next(entry for entry in body["recorded"] if entry["key"] == key) for key in ("fetch#1", "raw#2")]
    assert body["recordedCount"] == 3
    assert (fetch["kind"], fetch["attempts"], fetch["seconds"], fetch["size"]) == ("step", 2, 0.005, 3002)
    assert fetch["run"] is None, "the result was recorded before the task was accepted"
    assert raw["size"] == 2
    assert body["task"]["isOwner"] is (owner == "ops")
    contents = {entry["key"]: (entry.get("content"), entry.get("cut")) for entry in body["recorded"]}
    if owner == "ops":
        assert (fetch["arguments"], raw["arguments"]) == ('["Rome"]', "")
        assert contents["fetch#1"] == ('"' + "x" * 1999, True)
        assert contents["raw#2"] == (None, False)
        assert contents["tool(8f)#1"] == (FAILED_CALL.content.decode(), False)
    else:
        assert set(contents.values()) == {(None, None)}
        assert "Rome" not in str(body)
    assert ("name" in body["events"][-1]) is (owner == "ops")


async def test_a_key_for_one_tenant_reads_no_results_of_another(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    entries = [api_key_entry("ops", "operator-key", "acme")]
    async with serving(store, redis_server, keys, auth_api_keys=entries, operators=["ops"]) as site:
        visible = {}
        for tenant in ("", "acme"):
            claim = await site.seeds.claim_run(scope=Scope(agent="echo", tenant=tenant, owner="ops"))
            await site.seeds.append_events(claim, RESULT)
            visible[tenant] = (await site.get(f"/tasks/{claim.ref.task_id}")).json()["task"]["isOwner"]

    assert visible == {"": False, "acme": True}


async def test_a_timeline_of_many_large_results_is_bounded(site: Site) -> None:
    claim = await site.seeds.claim_run(scope=Scope(agent="echo", owner="ops"))
    entries = [replace(RESULT, key=f"fetch#{n}", content=b"x" * 20_000) for n in range(1000)]
    for first in range(0, 1000, 100):
        await site.seeds.append_events(claim, *entries[first : first + 100], written_count=first)

    answer = await site.get(f"/tasks/{claim.ref.task_id}")

    body = answer.json()
    assert body["recordedCount"] == 1000
    assert 0 < len(body["recorded"]) < 300
    assert body["recorded"][0]["content"]
    assert (body["recorded"][-1]["content"], body["recorded"][-1]["cut"]) == (None, True)
    assert len(answer.content) < 250_000
