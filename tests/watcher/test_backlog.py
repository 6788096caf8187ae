"""Republishing with a backlog. The dispatcher does not republish a run whose message may still wait in its queue."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import Publisher
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import claim_run
from a2a_celery.store.runs.publication import mark_published
from a2a_celery.watcher.dispatcher import DISPATCH_BATCH
from tests.support.store.dispatcher_setup import DUE_NOW_US, Broker, create_operation, dispatcher


async def test_runs_in_a_long_queue_are_not_published_again(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    broker.waiting = True
    watcher = dispatcher(store, keys, broker)

    for _ in range(3):
        await watcher.tick()
        await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 1 for task_id in due})

    assert broker.taken == []
    assert broker.asked == ["celery"] * 3, "once for all runs of a queue"
    assert await store.redis.hget(keys.task(due[0]).record, "republish_count") == b"0"


async def test_runs_published_before_their_queue_was_empty_are_published_again_once(
    store: AsyncStore, keys: Keys, due: list[str]
) -> None:
    """The broker has lost the messages of all three runs. Later, other messages wait in the queue."""
    broker = Broker()
    watcher = dispatcher(store, keys, broker)
    await store.redis.zrem(keys.dispatch, f"{due[0]}.1", f"{due[1]}.1")
    await watcher.tick()
    broker.waiting = True

    for _ in range(2):
        await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 1 for task_id in due})
        await watcher.tick()

    assert sorted(task_id for _, task_id, _ in broker.taken) == due


async def store_time_us(store: AsyncStore) -> int:
    """Return the time of the store's clock in µs."""
    seconds, micros = await store.redis.time()
    return int(seconds * 1_000_000 + micros)


@pytest.mark.parametrize("seconds", [2, 45, 1200])
async def test_a_run_that_may_be_in_its_queue_is_checked_again_when_it_has_waited_twice_as_long(
    store: AsyncStore, keys: Keys, seconds: int
) -> None:
    broker = Broker()
    broker.waiting = True
    await store.run(create_operation(keys, "t"))
    before_us = await store_time_us(store)
    published_us = before_us - seconds * 1_000_000
    await store.redis.hset(keys.task("t").record, "published_at", f"1 {published_us}")
    await store.redis.zadd(keys.dispatch, {"t.1": 1})

    await dispatcher(store, keys, broker).tick()

    waited_us = (await store.redis.zscore(keys.dispatch, "t.1") - published_us) / 2
    assert before_us <= published_us + waited_us <= await store_time_us(store)


async def test_a_run_whose_queue_is_unknown_is_published_again_without_a_check(store: AsyncStore, keys: Keys) -> None:
    """The options of the run contain an exchange, and no queue."""
    broker = Broker()
    broker.waiting = True
    await store.run(create_operation(keys, "t", b'{"celery":{"exchange":"x"}}'))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker).tick()

    assert (broker.taken, broker.asked) == ([("echo", "t", 1)], [])


START_US = (int(time.time()) - 600) * 1_000_000


async def published_at(store: AsyncStore, keys: Keys, task_id: str, second: float) -> None:
    """Set the time of the last publish of a run, in seconds after `START_US`, and make the run due."""
    at = START_US + int(second * 1_000_000)
    await store.redis.hset(keys.task(task_id).record, "published_at", f"1 {at}")
    await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 1}, xx=True)


async def claim_published_run(store: AsyncStore, keys: Keys, task_id: str, second: float, options: bytes = b"") -> None:
    """Create a run that was published at `second` and that a worker has claimed."""
    await store.run(create_operation(keys, task_id, options))
    await published_at(store, keys, task_id, second)
    await store.run(claim_run(keys, RunRef(task_id, 1), token="t", runner="r", lease_us=10_000_000, working=True))


async def test_a_lost_message_in_a_queue_that_is_never_empty_is_published_again_after_a_later_claim(
    store: AsyncStore, keys: Keys, due: list[str]
) -> None:
    broker = Broker()
    broker.waiting = True
    watcher = dispatcher(store, keys, broker)
    for task_id, second in zip(due, (0, 20, 40), strict=True):
        await published_at(store, keys, task_id, second)
    await watcher.tick()
    assert broker.taken == [], "no worker has claimed a run that was published later"

    await claim_published_run(store, keys, "later", 30)
    for _ in range(2):
        await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 1 for task_id in due})
        await watcher.tick()

    assert sorted(broker.taken) == [("echo", "t0", 1), ("echo", "t1", 1)]


async def test_a_message_that_a_queue_of_redis_lost_is_published_after_the_others(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    app = Celery("backlog", broker=redis_server.broker_url, set_as_current=False)
    publisher = Publisher(app, {})
    await publisher.publish_async("echo", RunRef("waiting", 1))
    await store.run(create_operation(keys, "lost"))
    await published_at(store, keys, "lost", 0)
    await claim_published_run(store, keys, "later", 30)

    await dispatcher(store, keys, publisher).tick()  # type: ignore[arg-type]

    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        assert [queue.get(timeout=5).headers["id"] for _ in range(2)] == ["waiting.1", "lost.1"]


async def test_a_claim_counts_after_its_run_has_ended(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    broker.waiting = True
    watcher = dispatcher(store, keys, broker)
    for task_id, second in zip(due, (0, 20, 20), strict=True):
        await published_at(store, keys, task_id, second)
    await claim_published_run(store, keys, "later", 10)
    await watcher.tick()
    await store.redis.delete(keys.leases)
    await published_at(store, keys, "t1", 4)

    await watcher.tick()

    assert broker.taken == [("echo", "t0", 1), ("echo", "t1", 1)]


@pytest.mark.parametrize(
    ("second", "options"),
    [
        (-1, b""),
        (4, b""),
        (60, b'{"celery":{"queue":"far"}}'),
        (60, b'{"celery":{"priority":9}}'),
    ],
    ids=["published-before", "published-shortly-after", "another-queue", "another-priority"],
)
async def test_runs_of_a_slow_queue_are_not_multiplied_by_a_claim_that_overtook_none(
    store: AsyncStore, keys: Keys, due: list[str], second: float, options: bytes
) -> None:
    broker = Broker()
    broker.waiting = True
    for task_id in due:
        await published_at(store, keys, task_id, 0)
    await claim_published_run(store, keys, "other", second, options)

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == []


async def test_a_run_with_a_priority_is_overtaken_by_claims_of_its_own_priority_only(
    store: AsyncStore, keys: Keys
) -> None:
    options = b'{"celery":{"priority":9}}'
    broker = Broker()
    broker.waiting = True
    await store.run(create_operation(keys, "waiting", options))
    await published_at(store, keys, "waiting", 0)
    await claim_published_run(store, keys, "other", 60)
    await dispatcher(store, keys, broker).tick()
    assert broker.taken == []

    await claim_published_run(store, keys, "equal", 30, options)
    await published_at(store, keys, "waiting", 0)
    await dispatcher(store, keys, broker).tick()
    assert broker.taken == [("echo", "waiting", 1)]


async def test_a_claim_of_a_run_that_was_published_again_overtakes_no_run(
    store: AsyncStore, keys: Keys, due: list[str]
) -> None:
    """The worker may have received the first message, which was published before the copy."""
    broker = Broker()
    broker.waiting = True
    for task_id in due:
        await published_at(store, keys, task_id, 0)
    await claim_published_run(store, keys, "copied", 60)
    await store.redis.hset(keys.task("copied").record, "republish_count", 1)

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == []


async def test_claims_are_read_once_in_a_tick_and_only_for_queues_that_are_not_empty(
    store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    run = AsyncStore.run

    async def record(self: AsyncStore, operation: Operation[Any]) -> Any:
        reads.append(operation.script.name)
        return await run(self, operation)

    monkeypatch.setattr(AsyncStore, "run", record)
    broker = Broker()
    broker.waiting = True
    watcher = dispatcher(store, keys, broker)
    for n in range(DISPATCH_BATCH + 1):
        await store.run(create_operation(keys, f"t{n:03}"))
        await store.run(mark_published(keys, RunRef(f"t{n:03}", 1), delay_us=DUE_NOW_US))

    await watcher.tick()
    assert reads.count("acquire_due_runs") == 2
    assert reads.count("claimed_runs") == 1

    broker.waiting = False
    await store.redis.zadd(keys.dispatch, {"t000.1": 1})
    await watcher.tick()
    assert reads.count("claimed_runs") == 1


async def test_a_long_queue_delays_no_run_of_another(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    broker.waiting = True
    await store.run(create_operation(keys, "other", b'{"celery":{"queue":"far"}}'))
    await store.run(mark_published(keys, RunRef("other", 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker).tick()

    assert [task_id for _, task_id, _ in broker.taken] == ["other"]


async def test_runs_after_many_waiting_ones_are_published_in_the_same_tick(store: AsyncStore, keys: Keys) -> None:
    broker = Broker()
    broker.waiting = True
    for n in range(DISPATCH_BATCH):
        await store.run(create_operation(keys, f"t{n}"))
        await store.run(mark_published(keys, RunRef(f"t{n}", 1), delay_us=DUE_NOW_US))
    await store.run(create_operation(keys, "unpublished"))
    seconds, _ = await store.redis.time()
    await store.redis.zadd(keys.dispatch, {"unpublished.1": (seconds - 1) * 1_000_000})

    await dispatcher(store, keys, broker).tick()

    assert [task_id for _, task_id, _ in broker.taken] == ["unpublished"]
