"""Delivery cursors. A cursor has one lease holder, advances without gaps, and can be abandoned and replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.deliveries import (
    Delivery,
    DeliveryCursor,
    DeliveryMetrics,
    abandon_delivery,
    deliveries,
    delivery_metrics,
    postpone_delivery,
    replay_delivery,
)
from a2a_celery.features.webhooks.push_configs import delete_push_config
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys, SyncStore
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import ANN, RETENTION, Seeds, chunk, run_concurrently, status

HOUR_US = 3_600_000_000


def operator_view(redis_server: EmbeddedRedis, keys: Keys, *, is_dead: bool) -> list[Delivery]:
    """Return the deliveries that an operator's sync client lists."""
    store = SyncStore(redis_server.store_url)
    try:
        return list(deliveries(store, keys, dead=is_dead))
    finally:
        store.close()


async def test_a_cursor_has_all_that_a_delivery_needs(webhooks: Webhooks, task_id: str) -> None:
    cursor = await webhooks.lease_cursor()

    assert (cursor.task_id, cursor.config_id, cursor.context_id, cursor.agent) == (
        task_id,
        "c",
        "the-context",
        ANN.agent,
    )
    assert (cursor.delivered, cursor.version, cursor.failures, cursor.failing_for) == (1, 2, 0, 0)
    assert cursor.sealed == b"sealed"
    assert "sealed'" not in repr(cursor)


async def test_a_cursor_has_one_holder(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    for _ in range(40):
        await webhooks.save_config(await seeds.create_task())
    for task in [key async for key in webhooks.store.redis.scan_iter(f"{keys.prefix}:*:task")]:
        await seeds.claim_run((await webhooks.store.redis.hget(task, "task_id")).decode())
    others = [AsyncStore(redis_server.store_url) for _ in range(4)]

    batches = await run_concurrently(*(Webhooks(other, keys).lease_cursors(limit=3) for other in others * 5))

    for other in others:
        await other.aclose()
    cursors = [cursor.task_id for cursors in batches for cursor in cursors]
    assert len(cursors) == len(set(cursors)) == 40


async def test_an_unrecorded_post_is_due_again_at_the_same_version(
    seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    killed_cursor = await webhooks.lease_cursor(lease_us=-1)

    next_cursor = await webhooks.lease_cursor()

    assert (next_cursor.delivered, next_cursor.task_id) == (killed_cursor.delivered, killed_cursor.task_id)
    assert await webhooks.record_delivery(killed_cursor, 2) == "lost"
    assert (await webhooks.delivery(task_id)).delivered == 1
    assert await webhooks.record_delivery(next_cursor, 2) == "done"


async def test_a_cursor_advances_to_the_end_of_the_log_and_is_due_with_the_next_event(
    seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    await seeds.append_events(claim, chunk("a"), chunk("b"))
    cursor = await webhooks.lease_cursor()

    assert await webhooks.record_delivery(cursor, 3) == "more"
    assert await webhooks.lease_cursors() == []
    assert await webhooks.record_delivery(cursor, 3, posted=False) == "more"
    await seeds.append_events(claim, chunk("c"), written_count=2)
    assert await webhooks.record_delivery(cursor, 4) == "more"
    assert await webhooks.record_delivery(cursor, 5) == "done"
    assert await webhooks.record_delivery(cursor, 5) == "done"
    assert (await webhooks.delivery(claim.ref.task_id)).state == "delivered"
    assert await webhooks.lease_cursors() == []
    await seeds.settle_run(claim, status(COMPLETED), written_count=3)
    assert (await webhooks.lease_cursor()).delivered == 5


async def test_a_cursor_moves_neither_back_nor_beyond_the_log(webhooks: Webhooks, task_id: str, seeds: Seeds) -> None:
    cursor = await webhooks.lease_cursor()

    await webhooks.record_delivery(cursor, 99)
    await webhooks.record_delivery(cursor, 1)

    assert (await webhooks.delivery(task_id)).delivered == 2


async def test_a_new_event_does_not_shorten_the_backoff_of_a_cursor(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    await seeds.append_events(claim, chunk("a"))
    cursor = await webhooks.lease_cursor()
    assert await store.run(postpone_delivery(keys, cursor, after_us=HOUR_US, counts=True, failure={"status": 503}))

    await seeds.append_events(claim, chunk("b"), written_count=1)

    assert await webhooks.lease_cursors() == []
    delivery = await webhooks.delivery(claim.ref.task_id)
    assert (delivery.state, delivery.failures, delivery.failure, delivery.is_leased) == (
        "failing",
        1,
        {"status": 503},
        False,
    )
    assert HOUR_US - 60_000_000 < delivery.due_us - delivery.now_us <= HOUR_US


async def test_failures_count_until_an_event_is_delivered(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    for counts in (True, False, True):
        cursor = await webhooks.lease_cursor()
        postpone = postpone_delivery(keys, cursor, after_us=0, counts=counts, failure={"reason": "slow"})
        assert await store.run(postpone)
        assert await store.run(postpone)  # a repeated call counts once
    cursor = await webhooks.lease_cursor()
    assert cursor.failures == 2
    assert 0 < cursor.failing_for < 60

    await webhooks.record_delivery(cursor, 2)

    delivery = await webhooks.delivery(task_id)
    assert (delivery.failures, delivery.first_failed_us, delivery.failure) == (0, 0, {})


async def test_the_cursor_of_a_deleted_config_is_lost(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    cursor = await webhooks.lease_cursor()

    assert await store.run(delete_push_config(keys, ANN, task_id, "c"))

    assert await webhooks.record_delivery(cursor, 2) == "lost"
    assert not await store.run(postpone_delivery(keys, cursor, after_us=0, counts=True))
    assert not await store.run(abandon_delivery(keys, cursor, failure={"reason": "gone"}))
    assert not {webhook_keys.deliveries(keys), keys.task(task_id).cursors} & set(await seeds.all_values())


async def test_the_cursor_of_a_replaced_config_is_lost_and_the_new_one_is_due(webhooks: Webhooks, task_id: str) -> None:
    cursor = await webhooks.lease_cursor()

    await webhooks.save_config(task_id, sealed=b"another")

    assert await webhooks.record_delivery(cursor, 2) == "lost"
    next_cursor = await webhooks.lease_cursor()
    assert (next_cursor.delivered, next_cursor.sealed) == (1, b"another")


async def give_up(webhooks: Webhooks, cursor: DeliveryCursor) -> None:
    """Abandon a delivery, and repeat the call as after a lost reply."""
    call = abandon_delivery(webhooks.keys, cursor, failure={"reason": "no", "status": 410})
    assert await webhooks.store.run(call)
    assert await webhooks.store.run(call)


async def test_an_abandoned_delivery_is_not_due_until_it_is_replayed(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    await seeds.append_events(claim, chunk("a"))
    await give_up(webhooks, await webhooks.lease_cursor())
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    assert await webhooks.lease_cursors() == []
    [delivery] = await asyncio.to_thread(operator_view, redis_server, keys, is_dead=True)
    assert (delivery.state, delivery.failure, delivery.delivered, delivery.version) == (
        "dead",
        {"reason": "no", "status": 410},
        2,
        4,
    )
    assert RETENTION - 60 < await store.redis.ttl(webhook_keys.dead_deliveries(keys)) <= RETENTION

    replay = replay_delivery(keys, claim.ref.task_id, "c")
    assert [await store.run(replay), await store.run(replay)] == ["replayed", "replayed"]
    assert await store.run(replay_delivery(keys, claim.ref.task_id, "c")) == "alive"
    assert await store.run(replay_delivery(keys, claim.ref.task_id, "other")) == "missing"

    assert await asyncio.to_thread(operator_view, redis_server, keys, is_dead=True) == []
    cursor = await webhooks.lease_cursor()
    assert (cursor.delivered, cursor.failures) == (2, 0)
    assert await webhooks.record_delivery(cursor, 4) == "done"


async def test_a_dead_delivery_of_a_live_task_does_not_expire(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await give_up(webhooks, await webhooks.lease_cursor())

    assert await store.redis.ttl(webhook_keys.dead_deliveries(keys)) == -1
    assert await store.redis.zscore(webhook_keys.dead_deliveries(keys), f"{task_id} c") == float("inf")


@pytest.mark.parametrize("operation", [replay_delivery, delete_push_config])
async def test_dead_deliveries_of_ended_tasks_expire_after_that_of_a_live_task_is_removed(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str, operation: Callable[..., Any]
) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    await seeds.append_events(claim, chunk("a"))
    for cursor in await webhooks.lease_cursors():
        await give_up(webhooks, cursor)
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    assert await store.redis.ttl(webhook_keys.dead_deliveries(keys)) == -1

    await store.run(operation(keys, scope=ANN, task_id=task_id, config_id="c"))

    assert await store.redis.zcard(webhook_keys.dead_deliveries(keys)) == 1
    assert 0 < await store.redis.ttl(webhook_keys.dead_deliveries(keys)) <= RETENTION


async def test_a_config_that_replaces_a_dead_one_receives_the_missed_events(
    seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    await give_up(webhooks, await webhooks.lease_cursor())

    await webhooks.save_config(task_id, sealed=b"another")

    assert await webhooks.drain() == {(task_id, "c"): [2]}


async def test_all_deliveries_are_listed_page_by_page_without_their_secrets(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    ids = await run_concurrently(*(seeds.create_task() for _ in range(300)))
    await run_concurrently(*(webhooks.save_config(task_id) for task_id in ids))
    await run_concurrently(*(seeds.claim_run(task_id) for task_id in ids))

    deliveries = await asyncio.to_thread(operator_view, redis_server, keys, is_dead=False)

    assert sorted(delivery.task_id for delivery in deliveries) == sorted(ids)
    assert {delivery.state for delivery in deliveries} == {"waiting"}
    assert "sealed" not in repr(deliveries)


async def test_an_expired_lease_frees_the_cursor(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await webhooks.lease_cursor(lease_us=HOUR_US)
    assert await webhooks.lease_cursors() == []

    await store.redis.zincrby(webhook_keys.deliveries(keys), -HOUR_US, f"{task_id} c")  # an hour later

    assert (await webhooks.lease_cursor()).task_id == task_id


async def test_the_outcomes_of_posts_are_counted_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    await seeds.append_events(claim, chunk("a"), chunk("b"))
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(1, 0, 0, 0, 0)

    cursor = await webhooks.lease_cursor()
    for _ in range(2):
        await webhooks.record_delivery(cursor, 3)
    for _ in range(2):
        await store.run(postpone_delivery(keys, cursor, after_us=0, counts=True))
    next_cursor = await webhooks.lease_cursor()
    await webhooks.record_delivery(next_cursor, 4, posted=False)
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(0, 0, 1, 1, 0)

    await seeds.append_events(claim, chunk("c"), written_count=2)
    last = await webhooks.lease_cursor()
    for _ in range(2):
        await store.run(abandon_delivery(keys, last, failure={"reason": "no"}))
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(0, 1, 1, 1, 1)


async def test_a_postponed_delivery_ages_without_failures(webhooks: Webhooks, task_id: str) -> None:
    cursor = await webhooks.lease_cursor()
    for _ in range(2):
        await webhooks.store.run(postpone_delivery(webhooks.keys, cursor, after_us=0, counts="age"))
        cursor = await webhooks.lease_cursor()

    assert cursor.failures == 0
    assert cursor.failing_for > 0
    old_delivery = await webhooks.delivery(task_id)
    assert (old_delivery.state, old_delivery.failures) == ("waiting", 0)
    await webhooks.record_delivery(cursor, 2)
    assert (await webhooks.delivery(task_id)).first_failed_us == 0


async def test_skipping_the_last_event_ends_a_failure(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    """If the failure stayed recorded, an event that fails once days later would count as failing for days."""
    await store.run(
        postpone_delivery(keys, await webhooks.lease_cursor(), after_us=0, counts="age", failure={"reason": "dead"})
    )

    assert await webhooks.record_delivery(await webhooks.lease_cursor(), 2, posted=False) == "done"

    delivery = await webhooks.delivery(task_id)
    assert (delivery.state, delivery.first_failed_us, delivery.failure, delivery.is_leased) == (
        "delivered",
        0,
        {},
        False,
    )
