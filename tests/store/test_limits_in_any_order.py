"""Random walks over the operations of the store. After each operation, each open task is in the list that continues the
task. At the end, the counters match the stored tasks, all tasks can end, and every key expires."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import (
    SUBMITTED,
    TERMINAL,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.start_check import secrets_in_use
from a2a_celery.store.tasks.commands import delete_task
from tests.features.limits.test_store import stored_bytes, try_to_create
from tests.support.store.leaks import leaks
from tests.support.store.replies import begins, is_limited
from tests.support.store.seeds import ANN, BOB, Seeds
from tests.support.store.view import Record, View
from tests.support.store.walk import MOVES, OFTEN, PHASES, World


async def require_bytes_counted(seeds: Seeds, records: dict[str, Record]) -> None:
    """Assert that a task's counter covers its stored bytes, and that an owner's counter is the sum over the owner's
    tasks."""
    await try_to_create(seeds, {"owner_bytes": 1})  # expired tasks leave the sums
    sums: Counter[str] = Counter()
    for task_id, record in records.items():
        assert int(record["size"]) >= await stored_bytes(seeds, task_id), record
        sums[record["scope"].partition("/")[2]] += int(record["size"])
    counters = await seeds.store.redis.hgetall(seeds.keys.stored)
    assert {owner.decode(): int(size) for owner, size in counters.items()} == sums


async def require_limits_reached_exactly(world: World) -> None:
    """Assert that each limit refuses a task exactly if the stored tasks reach the limit."""
    records = world.view.records.values()
    queued_count = sum(r["phase"] == "queued" and r["scope"].startswith("agent/") for r in records)
    for scope in (ANN, BOB):
        states = Counter(int(r["state"]) for r in records if r["scope"].endswith(f"/{scope.owner}"))
        for limit, most in {"concurrent": states[SUBMITTED] + states[WORKING], "queued": queued_count}.items():
            refusal = await try_to_create(world.seeds, {limit: most}, scope)
            assert is_limited(refusal), (limit, most)
            answer = await try_to_create(world.seeds, {limit: most + 1}, scope)
            assert begins(answer), (limit, most)
            assert await world.run(delete_task(world.keys, scope, answer.task.id)) == 1


async def require_every_key_expires(world: World) -> None:
    """Assert that each key has an expiry when all tasks have ended, except the keys that ``store/keys.py`` describes as
    permanent or as removed on use. Then let the keys expire, and assert that only permanent keys remain after a use."""
    keys, redis = world.keys, world.seeds.store.redis
    permanent = {keys.metrics, webhook_keys.delivery_outcomes(keys), keys.installation, keys.scopes}
    removed_on_use = {keys.secrets, keys.stored, keys.stored_expiring}
    names = [name.decode() async for name in redis.scan_iter()]
    assert [name for name in names if await redis.ttl(name) < 0 and name not in permanent | removed_on_use] == []
    await redis.delete(*(set(names) - permanent - removed_on_use))
    for entry in await redis.zrange(keys.stored_expiring, 0, -1):
        await redis.zadd(keys.stored_expiring, {entry: 1})
    await try_to_create(world.seeds, {"owner_bytes": 1})
    await world.run(secrets_in_use(keys))
    assert {name.decode() async for name in redis.scan_iter()} <= permanent


@pytest.mark.parametrize("archives", [False, True])
@pytest.mark.parametrize("seed", range(10))
async def test_every_task_is_continued_and_counted_after_any_operations(
    store: AsyncStore, keys: Keys, seeds: Seeds, seed: int, archives: bool
) -> None:
    if archives:
        await store.redis.hset(keys.installation, "archive", "1")
    world = World(seeds, random.Random(seed), await View.of(store, keys))
    moves = [*MOVES, *OFTEN]
    for number in range(80):
        if len(world.view.in_phase(*PHASES)) < 6 and world.chance.random() < 0.3:
            await world.create()
            await world.look()
        await world.act(world.chance.choice(moves))
        if number % 16 == 15:
            assert await leaks(store, keys) == []
    await require_bytes_counted(seeds, world.view.records)
    await require_limits_reached_exactly(world)
    open_tasks = [r for r in world.view.records.values() if int(r["state"]) not in TERMINAL and r["code_version"]]
    open_versions = Counter((Scope.parse(r["scope"]).agent, r["code_version"]) for r in open_tasks)
    assert (await store.run(read_metrics(keys))).counted("version") == open_versions

    await world.drain()

    assert (await store.run(read_metrics(keys))).counted("version") == {}
    assert await leaks(store, keys) == []
    await require_every_key_expires(world)
