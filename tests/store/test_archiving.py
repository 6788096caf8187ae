"""Archiving of terminal tasks. A task leaves the store as a whole, and only after the archive has a copy."""

from __future__ import annotations

import asyncio

from a2a_celery.features.dead_letters.dead_letter import read_dead_letter
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.archiving import (
    UNDELIVERED_RETENTION,
    acquire_archivable,
    defer_archiving,
    read_archive_state,
    remove_archived,
    retry_refused,
    update_archive_backlog,
)
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.schema import SCHEMA, require_schema
from a2a_celery.store.runs.commands import Claim, claim_run
from a2a_celery.store.tasks.commands import list_tasks, request_cancel
from a2a_celery.store.tasks.signals import send_signal
from tests.features.limits.test_store import counted_bytes, stored_bytes, try_to_create
from tests.store.test_cost import Meter
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.leaks import leaks
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, chunk, status


async def enable_archive(store: AsyncStore, keys: Keys) -> None:
    """Enable the archive in the installation record."""
    await store.redis.hset(keys.installation, mapping={"schema": SCHEMA, "archive": "1", "adopted": "1"})


async def due(store: AsyncStore, keys: Keys, archiver: str = "me", limit: int = 10) -> list[str] | None:
    """Acquire due tasks for an archiver. Return their ids, or None if a different archiver holds the lease."""
    tasks = (await store.run(acquire_archivable(keys, archiver_id=archiver, limit=limit, lease_ms=60_000))).tasks
    return None if tasks is None else [task_id for task_id, _ in tasks]


async def make_due(store: AsyncStore, keys: Keys) -> None:
    """Make all archivable tasks due, as if their retention had expired."""
    for place, tag in enumerate(await store.redis.zrange(keys.archive, 0, -1)):
        await store.redis.zadd(keys.archive, {tag: place + 1})


async def read_list(store: AsyncStore, keys: Keys) -> tuple[list[str], int | None]:
    """Return the ids of the listed tasks, and the status time of the newest archived task."""
    page = await store.run(list_tasks(keys, ANN, retention=RETENTION, page_size=100, archived=True))
    return [task.id for task in page.tasks], page.border_us


async def test_an_ended_task_waits_without_an_expiry_until_it_is_due(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    await enable_archive(store, keys)
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("a"))
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    task_id = claim.ref.task_id
    others = [await seeds.create_task_in(FAILED), await seeds.create_task()]
    await store.run(request_cancel(keys, ANN, others[1], CONTEXT))
    await seeds.create_task_in(INPUT_REQUIRED)

    remaining = [key async for key in store.redis.scan_iter(f"{keys.prefix}:{{*")]
    assert {await store.redis.ttl(key) for key in remaining} == {-1}
    at = (await seeds.task(task_id)).status.timestamp.ToMicroseconds()
    assert await store.redis.zscore(keys.archive, task_id) == at + RETENTION * 1_000_000
    assert await due(store, keys) == []
    assert (await store.run(read_archive_state(keys))).waiting == 3


async def test_one_archiver_at_a_time_gets_the_oldest_tasks(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    task_ids = [await seeds.create_task_in(COMPLETED, scope=scope) for scope in (ANN, BOB, ANN)]
    await make_due(store, keys)

    assert await due(store, keys, limit=2) == task_ids[:2]
    assert await due(store, keys, "other") is None
    assert await due(store, keys) == task_ids
    await store.redis.delete(keys.archiver)
    assert await due(store, keys, "other") == task_ids


async def test_an_archived_task_leaves_no_key_and_moves_the_border(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    await enable_archive(store, keys)
    first = await seeds.create_task_in(COMPLETED)
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    claim = await seeds.claim_run(task_id)
    await seeds.append_events(claim, chunk("a"))
    await seeds.settle_run(claim, status(FAILED), written_count=1)
    await store.redis.delete(webhook_keys.deliveries(keys))  # no delivery is due
    at = (await seeds.task(task_id)).status.timestamp.ToMicroseconds()
    assert await read_list(store, keys) == ([task_id, first], None)

    assert await store.run(remove_archived(keys, [task_id, "unknown"])) == 1
    assert await store.run(remove_archived(keys, [task_id])) == 0

    assert await read_list(store, keys) == ([first], at)
    assert [key async for key in store.redis.scan_iter(f"{keys.prefix}:{{{task_id}}}*")] == []
    assert await store.redis.zrange(keys.archive, 0, -1) == [first.encode()]
    # an older task does not move the archive cutoff back
    await store.run(remove_archived(keys, [first]))
    assert await read_list(store, keys) == ([], at)


async def test_a_live_task_is_not_removed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    live_id = await seeds.create_task()
    await store.redis.zadd(keys.archive, {live_id: 1})

    assert await store.run(remove_archived(keys, [live_id])) == 0
    assert await due(store, keys) == []
    assert await seeds.task(live_id)


async def test_due_deliveries_outlive_their_archived_task(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    await enable_archive(store, keys)
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    await seeds.settle_run(await seeds.claim_run(task_id), status(COMPLETED))
    assert await store.redis.zcard(webhook_keys.deliveries(keys)) == 1

    await store.run(remove_archived(keys, [task_id]))

    assert (await read_list(store, keys))[0] == []
    assert await store.redis.zcard(webhook_keys.deliveries(keys)) == 1
    for key in (keys.task(task_id).record, keys.task(task_id).log, keys.task(task_id).cursors):
        assert 0 < await store.redis.ttl(key) <= UNDELIVERED_RETENTION


async def test_an_archived_dead_letter_with_due_deliveries_keeps_no_data_for_a_further_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    await enable_archive(store, keys)
    created = await try_to_create(seeds, {"owner_bytes": 10**9})
    assert begins(created)
    task_id = created.task.id
    await webhooks.save_config(task_id)
    claim = await store.run(
        claim_run(keys, RunRef(task_id, 1), token="t", runner="r", lease_us=-1, working=True, code_version="1")
    )
    assert isinstance(claim, Claim)
    await seeds.append_events(claim, JournalEntry("fetch#1", "step", "json", b"1" * 50))
    await store.run(send_signal(keys, ANN, task_id, name="go", payload=b"1", signal_id="s"))
    await seeds.recover_run(claim.ref)
    names = keys.task(task_id)
    assert await store.redis.exists(names.journal, names.signals) == 2

    await store.run(remove_archived(keys, [task_id]))

    assert not await store.redis.exists(names.journal, names.signals)
    assert (await store.run(read_metrics(keys))).counted("version") == {}
    assert await counted_bytes(seeds) == await stored_bytes(seeds, task_id)
    assert await webhooks.drain() == {(task_id, "c"): [2, 3]}
    assert await leaks(store, keys) == []


async def test_a_refused_task_delays_no_other_and_is_tried_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    refused_id, other = await seeds.create_task_in(COMPLETED), await seeds.create_task_in(COMPLETED)
    await make_due(store, keys)

    await store.run(defer_archiving(keys, refused_id))

    assert await due(store, keys) == [other]
    assert (await read_list(store, keys))[0] == [other, refused_id]
    assert (await store.run(read_archive_state(keys))).refused == 1
    assert await store.run(retry_refused(keys)) == 1
    assert await due(store, keys) == [refused_id, other]


async def test_tasks_that_ended_before_wait_too_and_expire_again_without_the_archive(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    newest_id = await seeds.create_task_in(COMPLETED)
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    await seeds.settle_run(await seeds.claim_run(task_id), status(CANCELED))
    live_id = await seeds.create_task()
    await store.redis.delete(webhook_keys.deliveries(keys))
    await require_schema_of_a_used_store(store, keys)
    assert not (await store.run(read_archive_state(keys))).complete

    assert await store.run(update_archive_backlog(keys, "0")) == ("0", 2)

    state = await store.run(read_archive_state(keys))
    assert (state.on, state.complete, state.waiting) == (True, True, 2)
    assert {
        await store.redis.ttl(keys.task(archivable_id).record) for archivable_id in (newest_id, task_id, live_id)
    } == {-1}
    assert await store.run(update_archive_backlog(keys, "0")) == ("0", 0)

    await store.run(read_archive_state(keys, give_up=True))
    assert await store.run(update_archive_backlog(keys, "0")) == ("0", 2)
    assert 0 < await store.redis.ttl(keys.task(newest_id).record) <= RETENTION
    assert await store.redis.ttl(keys.task(live_id).record) == -1
    assert not await store.redis.exists(keys.archive)


async def require_schema_of_a_used_store(store: AsyncStore, keys: Keys) -> None:
    """Check the schema of a used store, as a gateway with an archive does."""
    await store.redis.hset(keys.installation, "schema", SCHEMA)
    await require_schema(store, keys, archive=True)


async def test_the_lag_of_the_archive_is_reported(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    late_id, _ = await seeds.create_task_in(COMPLETED), await seeds.create_task_in(COMPLETED)
    seconds, _ = await store.redis.time()
    await store.redis.zadd(keys.archive, {late_id: (seconds - 3600) * 1_000_000})

    state = await store.run(read_archive_state(keys))

    assert (state.waiting, state.due, state.refused) == (2, 1, 0)
    assert 3600 <= state.lag < 3700


async def test_a_dead_letter_lasts_until_its_task_is_removed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    claim = await seeds.claim_run()
    await seeds.recover_run(claim.ref)
    [name] = await store.redis.zrange(keys.resubmittable, 0, -1)
    assert await store.run(read_dead_letter(keys, claim.ref.task_id))

    await store.run(remove_archived(keys, [name.decode()]))

    assert not await store.redis.exists(keys.resubmittable)


async def test_without_an_archive_the_end_of_a_task_costs_one_check(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    meter = Meter(store)
    claim = await seeds.claim_run()
    list_it = list_tasks(keys, ANN, retention=RETENTION, page_size=10)

    without = await meter.cost_of(list_it)
    await seeds.settle_run(claim, status(COMPLETED))

    assert "cmdstat_hget" not in without
    assert not await store.redis.exists(keys.archive, keys.installation)


async def test_concurrent_removals_count_each_task_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await enable_archive(store, keys)
    task_ids = [await seeds.create_task_in(COMPLETED) for _ in range(5)]

    counts = await asyncio.gather(*(store.run(remove_archived(keys, task_ids)) for _ in range(4)))

    assert sum(counts) == 5
    assert await store.redis.hget(keys.metrics, "archived agent tasks") == b"5"


async def test_a_dead_letter_from_before_keeps_journal_and_signals(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.recover_run(claim.ref)
    names = keys.task(claim.ref.task_id)
    for key in (names.journal, names.signals):
        await store.redis.hset(key, "some", "value")
        await store.redis.expire(key, RETENTION)
    await require_schema_of_a_used_store(store, keys)
    await store.run(read_archive_state(keys))

    assert await store.run(update_archive_backlog(keys, "0")) == ("0", 1)

    assert [await store.redis.ttl(key) for key in (names.record, names.journal, names.signals)] == [-1, -1, -1]
