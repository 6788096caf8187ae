"""Delivery lines: in one hand at a time, never back, never with a hole; given up and replayed."""

from __future__ import annotations

import asyncio

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.webhooks.deliveries import (
    Delivery,
    DeliveryCursor,
    DeliveryMetrics,
    abandon_delivery,
    deliveries,
    delivery_metrics,
    postpone_delivery,
    replay_delivery,
)
from a2a_celery.store.webhooks.push_configs import delete_push_config
from tests.support.delivery_cursors import Webhooks
from tests.support.seeds import ANN, RETENTION, Seeds, at_once, chunk, status

HOUR_US = 3_600_000_000


def everywhere(redis_server: EmbeddedRedis, keys: Keys, *, dead: bool) -> list[Delivery]:
    """What an operator sees."""
    store = SyncStore(redis_server.store_url)
    try:
        return list(deliveries(store, keys, dead=dead))
    finally:
        store.close()


async def test_a_line_says_what_it_takes_to_deliver(webhooks: Webhooks, task_id: str) -> None:
    line = await webhooks.one()

    assert (line.task_id, line.config_id, line.context_id, line.agent) == (task_id, "c", "the-context", ANN.agent)
    assert (line.delivered, line.version, line.failures, line.failing_for) == (1, 2, 0, 0)
    assert line.sealed == b"sealed"
    assert "sealed'" not in repr(line)


async def test_two_takers_never_hold_one_line(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    for _ in range(40):
        await webhooks.saved(await seeds.created())
    for task in [key async for key in webhooks.store.redis.scan_iter(f"{keys.prefix}:*:task")]:
        await seeds.claimed((await webhooks.store.redis.hget(task, "task_id")).decode())
    others = [AsyncStore(redis_server.store_url) for _ in range(4)]

    taken = await at_once(*(Webhooks(other, keys).take(limit=3) for other in others * 5))

    for other in others:
        await other.aclose()
    lines = [line.task_id for lines in taken for line in lines]
    assert len(lines) == len(set(lines)) == 40


async def test_what_was_posted_and_not_noted_is_due_again_at_the_same_version(
    seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    killed = await webhooks.one(lease_us=-1)

    again = await webhooks.one()

    assert (again.delivered, again.task_id) == (killed.delivered, killed.task_id)
    assert await webhooks.note(killed, 2) == "lost"
    assert (await webhooks.stands(task_id)).delivered == 1
    assert await webhooks.note(again, 2) == "done"


async def test_a_line_goes_on_to_the_end_of_the_log_and_is_due_with_the_next_event(
    seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claimed()
    await webhooks.saved(claim.ref.task_id)
    await seeds.appended(claim, chunk("a"), chunk("b"))
    line = await webhooks.one()

    assert await webhooks.note(line, 3) == "more"
    assert await webhooks.take() == []
    assert await webhooks.note(line, 3, posted=False) == "more"
    await seeds.appended(claim, chunk("c"), before=2)
    assert await webhooks.note(line, 4) == "more"
    assert await webhooks.note(line, 5) == "done"
    assert await webhooks.note(line, 5) == "done"
    assert (await webhooks.stands(claim.ref.task_id)).state == "delivered"
    assert await webhooks.take() == []
    await seeds.settled(claim, status(COMPLETED), before=3)
    assert (await webhooks.one()).delivered == 5


async def test_a_place_never_goes_back_nor_beyond_the_log(webhooks: Webhooks, task_id: str, seeds: Seeds) -> None:
    line = await webhooks.one()

    await webhooks.note(line, 99)
    await webhooks.note(line, 1)

    assert (await webhooks.stands(task_id)).delivered == 2


async def test_a_line_that_backs_off_is_not_due_earlier_for_a_new_event(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claimed()
    await webhooks.saved(claim.ref.task_id)
    await seeds.appended(claim, chunk("a"))
    line = await webhooks.one()
    assert await store.run(postpone_delivery(keys, line, after_us=HOUR_US, counts=True, failure={"status": 503}))

    await seeds.appended(claim, chunk("b"), before=1)

    assert await webhooks.take() == []
    stands = await webhooks.stands(claim.ref.task_id)
    assert (stands.state, stands.failures, stands.failure, stands.is_leased) == ("failing", 1, {"status": 503}, False)
    assert HOUR_US - 60_000_000 < stands.due_us - stands.now_us <= HOUR_US


async def test_failures_count_until_an_event_is_delivered(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    for counts in (True, False, True):
        line = await webhooks.one()
        postpone = postpone_delivery(keys, line, after_us=0, counts=counts, failure={"reason": "slow"})
        assert await store.run(postpone)
        assert await store.run(postpone)  # repeated: counts once
    line = await webhooks.one()
    assert line.failures == 2
    assert 0 < line.failing_for < 60

    await webhooks.note(line, 2)

    stands = await webhooks.stands(task_id)
    assert (stands.failures, stands.first_failed_us, stands.failure) == (0, 0, {})


async def test_who_holds_the_line_of_a_deleted_config_is_told(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    line = await webhooks.one()

    assert await store.run(delete_push_config(keys, ANN, task_id, "c"))

    assert await webhooks.note(line, 2) == "lost"
    assert not await store.run(postpone_delivery(keys, line, after_us=0, counts=True))
    assert not await store.run(abandon_delivery(keys, line, failure={"reason": "gone"}))
    assert not {keys.deliveries, keys.task(task_id).push} & set(await seeds.everything())


async def test_who_holds_the_line_of_a_replaced_config_is_told_and_the_new_one_is_due(
    webhooks: Webhooks, task_id: str
) -> None:
    line = await webhooks.one()

    await webhooks.saved(task_id, sealed=b"another")

    assert await webhooks.note(line, 2) == "lost"
    again = await webhooks.one()
    assert (again.delivered, again.sealed) == (1, b"another")


async def give_up(webhooks: Webhooks, line: DeliveryCursor) -> None:
    """The end of a line."""
    call = abandon_delivery(webhooks.keys, line, failure={"reason": "no", "status": 410})
    assert await webhooks.store.run(call)
    assert await webhooks.store.run(call)


async def test_a_line_that_was_given_up_is_not_due_until_it_is_replayed(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claimed()
    await webhooks.saved(claim.ref.task_id)
    await seeds.appended(claim, chunk("a"))
    await give_up(webhooks, await webhooks.one())
    await seeds.settled(claim, status(COMPLETED), before=1)
    assert await webhooks.take() == []
    [row] = await asyncio.to_thread(everywhere, redis_server, keys, dead=True)
    assert (row.state, row.failure, row.delivered, row.version) == ("dead", {"reason": "no", "status": 410}, 2, 4)
    assert RETENTION - 60 < await store.redis.ttl(keys.dead_deliveries) <= RETENTION

    replay = replay_delivery(keys, claim.ref.task_id, "c")
    assert [await store.run(replay), await store.run(replay)] == ["replayed", "replayed"]
    assert await store.run(replay_delivery(keys, claim.ref.task_id, "c")) == "alive"
    assert await store.run(replay_delivery(keys, claim.ref.task_id, "other")) == "missing"

    assert await asyncio.to_thread(everywhere, redis_server, keys, dead=True) == []
    line = await webhooks.one()
    assert (line.delivered, line.failures) == (2, 0)
    assert await webhooks.note(line, 4) == "done"


async def test_a_dead_line_of_a_live_task_is_kept_with_it(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await give_up(webhooks, await webhooks.one())

    assert await store.redis.ttl(keys.dead_deliveries) == -1
    assert await store.redis.zscore(keys.dead_deliveries, f"{task_id} c") == float("inf")


async def test_a_new_config_in_place_of_a_dead_one_gets_what_that_missed(
    seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    await give_up(webhooks, await webhooks.one())

    await webhooks.saved(task_id, sealed=b"another")

    assert await webhooks.drain() == {(task_id, "c"): [2]}


async def test_all_lines_are_listed_page_by_page_without_what_they_keep_secret(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    ids = await at_once(*(seeds.created() for _ in range(300)))
    await at_once(*(webhooks.saved(task_id) for task_id in ids))
    await at_once(*(seeds.claimed(task_id) for task_id in ids))

    rows = await asyncio.to_thread(everywhere, redis_server, keys, dead=False)

    assert sorted(row.task_id for row in rows) == sorted(ids)
    assert {row.state for row in rows} == {"waiting"}
    assert "sealed" not in repr(rows)


async def test_a_lease_that_is_over_frees_the_line(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await webhooks.one(lease_us=HOUR_US)
    assert await webhooks.take() == []

    await store.redis.zincrby(keys.deliveries, -HOUR_US, f"{task_id} c")  # an hour later

    assert (await webhooks.one()).task_id == task_id


async def test_what_became_of_posts_is_counted_and_a_repeated_call_is_one(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claimed()
    await webhooks.saved(claim.ref.task_id)
    await seeds.appended(claim, chunk("a"), chunk("b"))
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(1, 0, 0, 0, 0)

    line = await webhooks.one()
    for _ in range(2):
        await webhooks.note(line, 3)
    for _ in range(2):
        await store.run(postpone_delivery(keys, line, after_us=0, counts=True))
    again = await webhooks.one()
    await webhooks.note(again, 4, posted=False)
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(0, 0, 1, 1, 0)

    await seeds.appended(claim, chunk("c"), before=2)
    last = await webhooks.one()
    for _ in range(2):
        await store.run(abandon_delivery(keys, last, failure={"reason": "no"}))
    assert await store.run(delivery_metrics(keys)) == DeliveryMetrics(0, 1, 1, 1, 1)


async def test_a_line_that_waits_for_a_dead_host_ages_and_has_not_failed(webhooks: Webhooks, task_id: str) -> None:
    line = await webhooks.one()
    for _ in range(2):
        await webhooks.store.run(postpone_delivery(webhooks.keys, line, after_us=0, counts="age"))
        line = await webhooks.one()

    assert line.failures == 0
    assert line.failing_for > 0
    aged = await webhooks.stands(task_id)
    assert (aged.state, aged.failures) == ("waiting", 0)
    await webhooks.note(line, 2)
    assert (await webhooks.stands(task_id)).first_failed_us == 0


async def test_failing_ends_with_the_last_event_that_is_owed_wanted_or_not(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    """Else the next event, days later, would have failed for days at its first failure."""
    await store.run(postpone_delivery(keys, await webhooks.one(), after_us=0, counts="age", failure={"reason": "dead"}))

    assert await webhooks.note(await webhooks.one(), 2, posted=False) == "done"

    stands = await webhooks.stands(task_id)
    assert (stands.state, stands.first_failed_us, stands.failure, stands.is_leased) == ("delivered", 0, {}, False)
