"""Delivery attempts of a webhook, and the replays and pings that the webhook's owner requests."""

from __future__ import annotations

from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.deliveries import (
    MAX_REASON_LENGTH,
    MAX_REQUESTED_POSTS,
    Attempt,
    abandon_delivery,
    acquire_requested_posts,
    postpone_delivery,
    read_delivery,
    record_delivery,
    replay_delivery,
    request_post,
    settle_requested_post,
)
from a2a_celery.features.webhooks.push_configs import delete_push_config
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from tests.support.store.delivery_cursors import LEASE_US, Webhooks
from tests.support.store.seeds import ANN, BOB, RETENTION, Seeds, chunk, status

MAX_ATTEMPTS = 20
HOUR_US = 3_600_000_000


def failed_attempt(number: int = 1) -> Attempt:
    return Attempt(f"2-{number}", "failed", 500, number, "answered 500")


async def test_the_next_attempt_is_at_the_time_when_the_cursor_is_due(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    cursor = await webhooks.lease_cursor()
    await store.run(postpone_delivery(keys, cursor, after_us=HOUR_US, counts=True, attempt=failed_attempt()))

    delivery = await store.run(read_delivery(keys, task_id, "c"))

    assert delivery is not None
    assert [attempt.next_us for attempt in delivery.attempts] == [delivery.due_us]


async def test_each_attempt_is_stored_with_its_time_and_that_of_the_next_attempt(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    cursor = await webhooks.lease_cursor()
    postpone = postpone_delivery(keys, cursor, after_us=HOUR_US, counts=True, attempt=failed_attempt())
    for _ in range(2):  # the repeated call adds no attempt
        assert await store.run(postpone)
    await webhooks.pass_time(3600)
    cursor = await webhooks.lease_cursor()
    attempt = Attempt("2-1", "delivered", 204, 12)
    for _ in range(2):
        await store.run(record_delivery(keys, cursor, EventId(2), lease_us=LEASE_US, attempt=attempt))

    newest, oldest = (await webhooks.delivery(task_id)).attempts

    assert (newest.outcome, newest.status, newest.latency_ms, newest.reason, newest.next_us) == (
        "delivered", 204, 12, "", 0,
    )  # fmt: skip
    assert (oldest.post, oldest.outcome, oldest.status, oldest.reason) == ("2-1", "failed", 500, "answered 500")
    assert oldest.next_us == oldest.at_us + HOUR_US
    assert newest.at_us > oldest.at_us > 0


async def test_giving_up_a_webhook_is_an_attempt_without_a_next_one(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    attempt = Attempt("2-1", "gone", 410, 3, "answered 410")
    assert await store.run(
        abandon_delivery(keys, await webhooks.lease_cursor(), failure={"reason": "no"}, attempt=attempt)
    )

    delivery = await webhooks.delivery(task_id)
    [attempt] = delivery.attempts

    assert (attempt.outcome, attempt.status, attempt.next_us) == ("gone", 410, 0)
    assert delivery.failures == 1


async def test_giving_up_a_webhook_without_an_attempt_counts_no_failure(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await store.run(postpone_delivery(keys, await webhooks.lease_cursor(), after_us=0, counts=True))
    await store.run(abandon_delivery(keys, await webhooks.lease_cursor(), failure={"reason": "no"}))

    assert (await webhooks.delivery(task_id)).failures == 1


async def test_the_newest_attempts_are_stored_in_bounded_bytes(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    for number in range(3 * MAX_ATTEMPTS):
        cursor = await webhooks.lease_cursor()
        attempt = Attempt("9" * 15 + "-" + "9" * 16, "failed", 500, number, "x" * 10_000)
        await store.run(postpone_delivery(keys, cursor, after_us=0, counts=True, attempt=attempt))

    attempts = (await webhooks.delivery(task_id)).attempts

    assert [attempt.latency_ms for attempt in attempts] == list(range(3 * MAX_ATTEMPTS - 1, 2 * MAX_ATTEMPTS - 1, -1))
    assert {len(attempt.reason) for attempt in attempts} == {MAX_REASON_LENGTH}
    record = await store.redis.hgetall(keys.task(task_id).cursors)
    assert sum(map(len, record.values())) < MAX_ATTEMPTS * 350


async def test_attempts_and_requests_are_deleted_with_the_config_and_the_task(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    claim = await seeds.claim_run()
    for config_id in ("c", "d"):
        await webhooks.save_config(claim.ref.task_id, config_id)
        assert await store.run(request_post(keys, ANN, claim.ref.task_id, config_id, "ping-1")) == "requested"
    await seeds.append_events(claim, chunk("a"))
    for _ in range(MAX_ATTEMPTS):
        for cursor in await webhooks.lease_cursors():
            await store.run(postpone_delivery(keys, cursor, after_us=0, counts=True, attempt=failed_attempt()))
    push = keys.task(claim.ref.task_id).cursors

    assert await store.run(delete_push_config(keys, ANN, claim.ref.task_id, "c"))

    assert not [field for field in await store.redis.hkeys(push) if field.startswith(b"c:")]
    assert await store.redis.zrange(webhook_keys.requested_posts(keys), 0, -1) == [f"{claim.ref.task_id} d".encode()]
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    assert 0 < await store.redis.ttl(push) <= RETENTION
    await store.redis.delete(*(await store.redis.keys(f"*{{{claim.ref.task_id}}}*")))
    assert await store.run(acquire_requested_posts(keys, limit=9, lease_us=LEASE_US)) == []
    assert not await store.redis.exists(webhook_keys.requested_posts(keys))


async def test_only_the_owner_reads_and_requests(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    for scope, config_id in ((BOB, "c"), (ANN, "other")):
        assert await store.run(read_delivery(keys, task_id, config_id, scope)) is None
        assert await store.run(replay_delivery(keys, task_id, config_id, scope)) == "missing"
        assert await store.run(request_post(keys, scope, task_id, config_id, "ping-1")) == "missing"

    assert await store.run(read_delivery(keys, task_id, "c", ANN)) is not None
    assert await store.run(request_post(keys, ANN, "nobody", "c", "ping-1")) == "missing"


async def test_a_replayed_failed_delivery_is_due_at_once(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    replay = replay_delivery(keys, task_id, "c", ANN)
    cursor = await webhooks.lease_cursor()
    assert await store.run(replay) == "alive"
    await store.run(postpone_delivery(keys, cursor, after_us=HOUR_US, counts=True, attempt=failed_attempt()))
    assert await webhooks.lease_cursors() == []

    assert await store.run(replay) == "replayed"

    next_cursor = await webhooks.lease_cursor()
    assert (next_cursor.delivered, next_cursor.failures) == (1, 1)
    assert await store.run(replay) == "alive", "a deliverer posts to it now"


async def test_a_requested_event_that_is_due_anyway_is_delivered_in_order(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    await store.run(abandon_delivery(keys, await webhooks.lease_cursor(), failure={"reason": "no"}))
    event_id = (await seeds.log(task_id))[1].id

    assert await store.run(request_post(keys, ANN, task_id, "c", event_id)) == "requested"

    assert await store.run(acquire_requested_posts(keys, limit=9, lease_us=LEASE_US)) == []
    assert await webhooks.drain() == {(task_id, "c"): [2]}


async def test_requested_posts_are_made_once_in_their_order_and_again_when_a_watcher_dies(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    await webhooks.drain()
    event_id = (await seeds.log(task_id))[0].id
    for post in ("ping-1", event_id, "ping-1"):
        assert await store.run(request_post(keys, ANN, task_id, "c", post)) == "requested"
    take = acquire_requested_posts(keys, limit=9, lease_us=-1)

    [(killed_cursor, posts)] = await store.run(take)
    [(cursor, second_posts)] = await store.run(take)

    assert posts == second_posts == ["ping-1", str(event_id)]
    assert (killed_cursor.sealed, killed_cursor.config_id, killed_cursor.agent) == (b"sealed", "c", ANN.agent)
    for delivery_cursor in (cursor, killed_cursor):  # the second call has no effect
        ping = Attempt("ping-1", "delivered", 200, 1)
        await store.run(settle_requested_post(keys, delivery_cursor, "ping-1", ping, after_us=0))
    delivery = await webhooks.delivery(task_id)
    assert [attempt.post for attempt in delivery.attempts] == ["ping-1"]
    assert (delivery.requested, delivery.state, delivery.version) == ((str(event_id),), "delivered", 2)
    await store.run(settle_requested_post(keys, cursor, str(event_id), None, after_us=HOUR_US))
    assert await store.run(take) == []
    await store.redis.zincrby(webhook_keys.requested_posts(keys), -HOUR_US, f"{task_id} c")
    [(cursor, [last])] = await store.run(take)
    await store.run(settle_requested_post(keys, cursor, last, failed_attempt(), after_us=0))
    assert (await webhooks.delivery(task_id)).requested == ()
    assert not await store.redis.exists(webhook_keys.requested_posts(keys))


async def test_the_number_of_requested_posts_is_limited(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    pings = [f"ping-{number}" for number in range(MAX_REQUESTED_POSTS + 1)]

    replies = [await store.run(request_post(keys, ANN, task_id, "c", ping)) for ping in pings]

    assert replies == ["requested"] * MAX_REQUESTED_POSTS + ["full"]
    assert list((await webhooks.delivery(task_id)).requested) == pings[:-1]


async def test_an_event_that_the_log_does_not_have_cannot_be_requested(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, task_id: str
) -> None:
    await webhooks.drain()
    first = (await seeds.log(task_id))[0].id

    for event_id in (EventId(99, 1), EventId(1, first.recorded_us + 1)):
        assert await store.run(request_post(keys, ANN, task_id, "c", event_id)) == "gone"

    assert (await webhooks.delivery(task_id)).requested == ()


async def test_an_abandoned_webhook_gets_a_ping_and_stays_abandoned(
    store: AsyncStore, keys: Keys, webhooks: Webhooks, task_id: str
) -> None:
    await store.run(abandon_delivery(keys, await webhooks.lease_cursor(), failure={"reason": "no"}))
    assert await store.run(request_post(keys, ANN, task_id, "c", "ping-1")) == "requested"

    [(cursor, [ping])] = await store.run(acquire_requested_posts(keys, limit=9, lease_us=LEASE_US))
    await store.run(settle_requested_post(keys, cursor, ping, Attempt(ping, "delivered", 200, 1), after_us=0))

    assert (await webhooks.delivery(task_id)).state == "dead"
    assert await webhooks.lease_cursors() == []
