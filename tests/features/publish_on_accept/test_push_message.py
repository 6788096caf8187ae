"""Celery messages that scripts push to the broker. A script pushes the Celery message if and only if the store accepts
the client's message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.features.publish_on_accept.section import PushedMessage
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.client.redis_clients import database_of
from a2a_celery.store.runs.publication import acquire_due_runs
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    read_next_run,
)
from a2a_celery.store.tasks.replies import Known
from tests.support.store.limits import limit_sections
from tests.support.store.replies import begins, is_limited, waits
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request

QUEUE, CHANNEL = "celery\x06\x163", "/1.celeryev/task.sent"
BROKER_DATABASE = 1
AGAIN_US = 60_000_000


@pytest.fixture
async def broker(store: AsyncStore) -> AsyncIterator[redis.asyncio.Redis]:
    """Client of the broker's database on the store's server."""
    client = redis.asyncio.Redis.from_url(at_database(store, BROKER_DATABASE))
    yield client
    await client.aclose()


def at_database(store: AsyncStore, number: int) -> str:
    return f"unix://{store.redis.connection_pool.connection_kwargs['path']}?db={number}"


async def message(store: AsyncStore, run: str = "t.1", **changes: Any) -> PushedMessage:
    server = (await store.redis.info("server"))["run_id"]
    fields = {
        "run": run,
        "server": server,
        "database": BROKER_DATABASE,
        "store_database": 0,
        "queue": QUEUE,
        "body": b"the message",
        "event_channel": CHANNEL,
        "event": b"the event",
        "delay_us": AGAIN_US,
    }
    return PushedMessage(**fields | changes)


def create(keys: Keys, *sections: Any, task_id: str = "t", **options: Any) -> Any:
    message_request = request(task_id=task_id, context_id=CONTEXT)
    options = {"caller": b"{}", "retention": RETENTION, **options}
    return create_task(keys, ANN, task_id, CONTEXT, message_request, sections=sections, **options)


def continue_operation(keys: Keys, *sections: Any, **options: Any) -> Any:
    message_request = request("more", "t", CONTEXT)
    options = {"caller": b"{}", "nonce": "n", **options}
    return continue_task(keys, ANN, "t", message_request, "", sections=sections, **options)


async def queued_messages(broker: redis.asyncio.Redis) -> list[bytes]:
    messages: list[bytes] = await broker.lrange(QUEUE, 0, -1)
    return messages


async def test_a_created_task_is_in_the_queue_of_the_broker(
    store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis
) -> None:
    async with broker.pubsub() as events:
        await events.subscribe(CHANNEL)
        await events.get_message(timeout=5)

        answer = await store.run(create(keys, await message(store)))

        assert begins(answer)
        assert answer.is_published
        assert await queued_messages(broker) == [b"the message"]
        event = await events.get_message(ignore_subscribe_messages=True, timeout=5)
        assert event is not None
        assert event["data"] == b"the event"
    record = await store.redis.hgetall(keys.task("t").record)
    run, published_us = record[b"published_at"].split()
    assert run == b"1"
    assert await store.redis.zscore(keys.dispatch, "t.1") == int(published_us) + AGAIN_US


async def test_a_continued_task_is_in_the_queue_of_the_broker(
    store: AsyncStore, keys: Keys, seeds: Seeds, broker: redis.asyncio.Redis
) -> None:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    run = await store.run(read_next_run(keys, "t"))

    answer = await store.run(continue_operation(keys, await message(store, f"t.{run}")))

    assert begins(answer)
    assert (answer.run, answer.is_published) == (run, True)
    assert await queued_messages(broker) == [b"the message"]


async def test_the_connection_stays_in_the_database_of_the_store(any_server: EmbeddedRedis, keys: Keys) -> None:
    other_database = any_server.store_url.replace("db=0", "") + ("&" if "?" in any_server.store_url else "?") + "db=5"
    store = AsyncStore(other_database)
    pushed = await message(store, store_database=5)

    answers = [await store.run(create(keys, pushed)) for _ in range(2)]

    assert [answer.is_published for answer in answers] == [True, True]
    assert await store.redis.exists(keys.task("t").record)
    async with redis.asyncio.Redis.from_url(at_database(store, BROKER_DATABASE)) as broker:
        assert await broker.lrange(QUEUE, 0, -1) == [b"the message"]
        assert await broker.keys("test:*") == []
    await store.aclose()


async def test_a_message_to_the_database_of_the_store(store: AsyncStore, keys: Keys) -> None:
    answer = await store.run(create(keys, await message(store, database=0)))

    assert answer.is_published
    assert await store.redis.lrange(QUEUE, 0, -1) == [b"the message"]
    await store.redis.delete(QUEUE)


@pytest.mark.parametrize("change", [{"server": "0" * 40}, {"run": "t.2"}, {"database": 99}])
async def test_a_message_for_another_server_run_or_database_is_not_pushed(
    store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis, change: dict[str, Any]
) -> None:
    answer = await store.run(create(keys, await message(store, **change)))

    assert begins(answer)
    assert not answer.is_published
    assert await queued_messages(broker) == []
    assert await store.redis.hget(keys.task("t").record, "published_at") is None


async def test_a_queue_that_refuses_the_message_refuses_no_task(
    store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis
) -> None:
    await broker.set(QUEUE, "is no queue")

    answer = await store.run(create(keys, await message(store)))

    assert begins(answer)
    assert not answer.is_published
    assert await store.run(acquire_due_runs(keys, limit=1, delay_us=1)) == []


async def test_a_refused_message_is_not_pushed(store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis) -> None:
    answer = await store.run(create(keys, await message(store), *limit_sections(keys, concurrent=0)))

    assert is_limited(answer)
    assert await queued_messages(broker) == []


async def test_a_full_store_pushes_nothing(any_server: EmbeddedRedis, keys: Keys) -> None:
    store = AsyncStore(any_server.store_url)
    pushed = await message(store)
    await store.redis.config_set("maxmemory", 1)

    with pytest.raises(StoreUnavailable):
        await store.run(create(keys, pushed))

    async with redis.asyncio.Redis.from_url(at_database(store, BROKER_DATABASE)) as broker:
        assert await broker.keys("*") == []
    assert await store.redis.exists(keys.task("t").record) == 0
    await store.aclose()


async def test_a_repeated_call_is_pushed_once(store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis) -> None:
    pushed = await message(store)

    answers = [await store.run(create(keys, pushed)) for _ in range(2)]

    assert [answer.is_published for answer in answers] == [True, True]
    assert await queued_messages(broker) == [b"the message"]


async def test_a_repeated_call_to_continue_is_pushed_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, broker: redis.asyncio.Redis
) -> None:
    await seeds.create_task_in(INPUT_REQUIRED, task_id="t")
    pushed = await message(store, "t.2")

    answers = [await store.run(continue_operation(keys, pushed)) for _ in range(2)]

    assert [answer.is_published for answer in answers] == [True, True]
    assert await queued_messages(broker) == [b"the message"]


async def test_a_message_that_was_accepted_before_is_not_pushed(
    store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis
) -> None:
    key = IdempotencyKey.of(keys, ANN, "m", "digest", 60_000)
    await store.run(create(keys, await message(store), key))

    second_result = await store.run(create(keys, await message(store, "u.1"), key, task_id="u"))

    assert isinstance(second_result, Known)
    assert await queued_messages(broker) == [b"the message"]


async def test_a_run_that_another_run_of_its_context_blocks_is_not_pushed(
    store: AsyncStore, keys: Keys, broker: redis.asyncio.Redis
) -> None:
    await store.run(create(keys, task_id="first", serialize_context=True))

    answer = await store.run(create(keys, await message(store), serialize_context=True))

    assert begins(answer)
    assert (answer.is_blocked, answer.is_published) == (True, False)
    assert await queued_messages(broker) == []


async def test_a_message_that_waits_for_the_end_of_a_run_is_not_pushed(
    store: AsyncStore, keys: Keys, seeds: Seeds, broker: redis.asyncio.Redis
) -> None:
    await seeds.claim_run(await seeds.create_task(task_id="t"))
    assert await store.run(read_next_run(keys, "t")) is None

    answer = await store.run(continue_operation(keys, await message(store, "t.2")))

    assert waits(answer)
    assert await queued_messages(broker) == []


async def test_a_worker_claims_a_run_that_was_pushed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await store.run(create(keys, await message(store)))

    claim = await seeds.claim_run("t")

    assert claim.ref == RunRef("t", 1)
    assert await store.redis.zscore(keys.dispatch, "t.1") is None


@pytest.mark.parametrize(
    ("url", "number"),
    [("redis://h:1/3", 3), ("redis://h", 0), ("unix:///s?db=2", 2), ("sentinel://h:1/4?master_name=m", 4)],
)
def test_the_database_of_a_store(url: str, number: int) -> None:
    assert database_of(url) == number
