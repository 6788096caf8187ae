"""Dead letters in the operator's API: lists, requeueing, and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from tests.gateway.test_operator_actions import act, audit_lines, audited
from tests.gateway.test_operator_api import BOB, USERS, Site, serving

__all__ = ["audit_lines"]


@pytest.fixture
async def site(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[Site]:
    async with serving(store, redis_server, keys, auth_api_keys=USERS, operators=["ops"]) as site:
        yield site


async def test_a_refused_requeue_changes_nothing(site: Site) -> None:
    task_id = await site.dead_letter()

    answer = await site.post(f"/dead-letters/{task_id}:requeue", "bob-key")

    assert answer.status_code == 403
    [dead_letter] = (await site.get("/dead-letters")).json()["tasks"]
    assert dead_letter["id"] == task_id


async def test_only_the_operator_s_own_dead_letters_have_texts(site: Site) -> None:
    own = Scope(agent="echo", owner="ops")
    claims = [await site.seeds.claim_run(scope=scope) for scope in (own, replace(own, owner="bob"))]
    for claim in claims:
        await site.seeds.recover_run(claim.ref)

    tasks = (await site.get("/dead-letters")).json()["tasks"]

    assert len(tasks) == 2
    texts = {task["id"]: (task["request"], task["text"]) for task in tasks if "request" in task}
    assert texts == {claims[0].ref.task_id: ("hello", "The worker was lost.")}


async def test_a_dead_letter_is_requeued_once_for_its_owner(site: Site) -> None:
    task_id = await site.dead_letter()
    [dead_letter] = (await site.get("/dead-letters")).json()["tasks"]
    assert (dead_letter["id"], dead_letter["owner"], dead_letter["state"]) == (task_id, "bob", "TASK_STATE_FAILED")

    first = (await site.post(f"/dead-letters/{task_id}:requeue")).json()
    second_answer = (await site.post(f"/dead-letters/{task_id}:requeue")).json()

    assert first == {"task": first["task"], "requeuedFrom": task_id, "before": False}
    assert second_answer == {**first, "before": True}
    assert (await site.get("/dead-letters")).json()["tasks"] == []
    headers = {"A2A-Version": "1.0", "X-API-Key": "bob-key"}
    assert (await site.http.get(f"/agents/echo/tasks/{first['task']}", headers=headers)).status_code == 200


@pytest.mark.parametrize("state", ["missing", "open", "ended"])
async def test_a_task_that_is_not_a_dead_letter_is_not_requeued(site: Site, state: str) -> None:
    task_id = "nothing" if state == "missing" else (await site.seeds.claim_run(scope=BOB)).ref.task_id
    if state == "ended":
        task_id = await site.seeds.create_task_in(COMPLETED, scope=BOB)

    answer = await site.post(f"/dead-letters/{task_id}:requeue")

    assert answer.status_code == (404 if state == "missing" else 400)
    text = {
        "missing": "not found",
        "open": "has not ended (WORKING): only a dead letter can be requeued",
        "ended": "is COMPLETED: only a task that FAILED because its worker was lost",
    }
    assert text[state] in answer.json()["error"]["message"]


async def test_all_dead_letters_are_requeued_page_by_page(site: Site, audit_lines: pytest.LogCaptureFixture) -> None:
    dead_ids = {await site.dead_letter() for _ in range(230)}
    claim = await site.seeds.claim_run(scope=BOB)
    await site.seeds.recover_run(claim.ref)
    await site.store.redis.hset(site.keys.task(claim.ref.task_id).record, "agent", "elsewhere")

    results: list[dict[str, Any]] = []
    cursor, remaining = 0, []
    while cursor is not None:
        page = (await act(site, f"/dead-letters:requeue?cursor={cursor}")).json()
        results += page["results"]
        remaining.append(page["remaining"])
        cursor = page["next"]

    requeued = {result["requeuedFrom"]: result["task"] for result in results if "task" in result}
    assert set(requeued) == dead_ids
    assert len(set(requeued.values())) == len(dead_ids)
    [refused] = [result for result in results if "error" in result]
    assert refused["requeuedFrom"] == claim.ref.task_id
    assert "'elsewhere', which this app does not have" in refused["error"]
    assert len(remaining) > 1
    assert remaining[-1] == 1, "the refused dead letter remains"
    assert {fields["result"] for fields in audited(audit_lines)} == {"requeued", "refused"}
    [line] = [fields for fields in audited(audit_lines) if fields.get("requeued_from") == min(dead_ids)]
    assert (line["operator"], line["task"]) == ("ops", requeued[min(dead_ids)])


async def test_repeated_requests_requeue_once(site: Site, audit_lines: pytest.LogCaptureFixture) -> None:
    dead_id = await site.dead_letter()
    assert (await site.get(f"/tasks/{dead_id}")).json()["task"]["deadLetter"]

    first = (await act(site, f"/dead-letters/{dead_id}:requeue")).json()
    timelines = [(await site.get(f"/tasks/{task_id}")).json()["task"] for task_id in (dead_id, first["task"])]
    page = (await act(site, "/dead-letters:requeue")).json()
    second = (await act(site, f"/dead-letters/{dead_id}:requeue")).json()

    assert (first["before"], second["before"]) == (False, True)
    assert first["task"] == second["task"]
    assert f"by the operator 'ops': requeued, agent 'echo', new task '{first['task']}'" in audit_lines.text
    assert [task["deadLetter"] for task in timelines] == [False, False]
    assert page == {"results": [], "next": None, "remaining": 0}
