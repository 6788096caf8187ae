"""Rules for Redis keys. Each kind of key has a rule, and the leak checker finds keys that violate their rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.lifecycle.execution import Activity, Transition
from a2a_celery.lifecycle.execution import ExecutionState as S
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from tests.support.store.leaks import leaks
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

ODD_IDS = ["plain", "a:b", "with space", "{brace}", "new\nline", "ünï", "%41", "t.1"]


async def create_all_keys(seeds: Seeds, task_id: str) -> None:
    """Run a task for which the store writes each kind of key."""
    claim = await seeds.claim_run(await seeds.create_task(task_id=task_id))
    message_request = request("next", task_id, CONTEXT)
    await seeds.store.run(continue_task(seeds.keys, ANN, task_id, message_request, "", caller=b"{}", nonce="1"))
    await seeds.append_events(claim, chunk("a", task_id), chunk("b", "other:id {x}"), status(WORKING, "busy", step=1))
    await seeds.append_events(claim, Activity(1, 1, "r", Transition(1, S.IDLE, S.INITIALIZING, 1)), written_count=3)
    await seeds.settle_run(claim, status(INPUT_REQUIRED, "?"), written_count=4)
    claim = await seeds.claim_run(task_id, run=2)
    await seeds.store.run(continue_task(seeds.keys, ANN, task_id, message_request, "", caller=b"{}", nonce="2"))
    await seeds.append_events(claim, chunk("a", task_id), JournalEntry("fetch#1", "step", "json", b"1"))


@pytest.mark.parametrize("task_id", ODD_IDS)
async def test_a_live_task_has_only_documented_keys(store: AsyncStore, keys: Keys, seeds: Seeds, task_id: str) -> None:
    await create_all_keys(seeds, task_id)

    assert await leaks(store, keys) == []
    names = keys.task(task_id)
    task_keys = {names.record, names.log, names.history, names.artifacts, names.metadata, names.turns, keys.leases}
    task_keys |= {names.execution, names.journal}
    chunks = {names.chunks + task_id, names.chunks + "other:id {x}"}
    lists = {keys.scope_index(ANN) + str(int(WORKING)), keys.context_index(ANN, CONTEXT) + str(int(WORKING))}
    assert set(await seeds.all_values()) == task_keys | chunks | lists | {keys.scopes}
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize("task_id", ODD_IDS)
async def test_when_all_tasks_have_ended_every_key_expires(
    store: AsyncStore, keys: Keys, seeds: Seeds, task_id: str
) -> None:
    await create_all_keys(seeds, task_id)
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("a"), status(COMPLETED))
    paused_id = await seeds.create_task_in(INPUT_REQUIRED)
    queued_id = await seeds.create_task()
    for other in (paused_id, queued_id):
        await store.run(request_cancel(keys, ANN, other, CONTEXT))
    await seeds.create_task_in(FAILED)

    # the runner of the task with all keys ends this task last
    [name] = await store.redis.zrange(keys.leases, 0, -1)
    token = (await store.redis.hget(keys.task(task_id).record, "token")).decode()
    assert name.decode() == f"{task_id}.2"
    running = replace(claim, ref=RunRef(task_id, 2), token=token)
    await seeds.settle_run(running, status(CANCELED), written_count=2)

    assert await store.redis.delete(keys.metrics, keys.scopes) == 2  # these keys do not expire
    async for key in store.redis.scan_iter():
        assert 0 < await store.redis.ttl(key) <= RETENTION, key


async def test_the_leak_checker_finds_what_breaks_a_rule(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    live_id, ended_id = await seeds.create_task(), await seeds.create_task_in(COMPLETED)
    breaches = {
        f"{keys.prefix}:unheard-of": lambda key: store.redis.set(key, 1),
        keys.task("gone").log: lambda key: store.redis.rpush(key, "x"),
        keys.task(ended_id).turns: lambda key: store.redis.rpush(key, "x"),
        keys.task(ended_id).log: store.redis.persist,
        keys.task(ended_id).journal: lambda key: store.redis.hset(key, "fetch#1", "[]"),
        keys.task(ended_id).execution: lambda key: store.redis.rpush(key, "[]"),
        keys.scope_index(ANN) + str(int(COMPLETED)): store.redis.persist,
        keys.scope_index(ANN) + str(int(WORKING)): lambda key: store.redis.zadd(key, {live_id: 1}),
        keys.leases: lambda key: store.redis.zadd(key, {f"{live_id}.1": 1}),
        keys.scopes: lambda key: store.redis.zadd(key, {str(ANN): 1}),
        keys.dispatch: lambda key: store.redis.zadd(key, {f"{ended_id}.1": 1}),
        keys.resubmittable: lambda key: store.redis.zadd(key, {"gone": 1}),
        webhook_keys.deliveries(keys): lambda key: store.redis.zadd(key, {f"{live_id} c": 1}),
        webhook_keys.requested_posts(keys): lambda key: store.redis.zadd(key, {f"{live_id} c": 1}),
        keys.task(ended_id).cursors: lambda key: store.redis.hset(key, "c:sealed", "x"),
        webhook_keys.delivery_outcomes(keys): lambda key: store.redis.hset(key, "lost", 1),
        keys.secrets: lambda key: store.redis.hset(key, "f0", "elsewhere"),
        IdempotencyKey.of(keys, ANN, "m", "d", 1).key: lambda key: store.redis.hset(key, "digest", "d"),
        keys.task(live_id).history: lambda key: store.redis.expire(key, 9),
    }

    for key, breach in breaches.items():
        await breach(key)
        findings = await leaks(store, keys)
        assert len(findings) == 1, (key, findings)
        assert findings[0].startswith(key)
        await store.redis.flushall()
        live_id, ended_id = (
            await seeds.create_task(task_id=live_id),
            await seeds.create_task_in(COMPLETED, task_id=ended_id),
        )


async def test_scopes_that_spell_alike_share_no_key(seeds: Seeds, keys: Keys) -> None:
    scopes = [Scope("a", "b/c", ""), Scope("a", "b", "c"), Scope("a/b", "c", ""), Scope("a", "", "b/c"), Scope("a:b")]

    assert len({keys.scope_index(scope) for scope in scopes}) == len(scopes)
    assert len({keys.context_index(scope, "c:1") for scope in scopes}) == len(scopes)
