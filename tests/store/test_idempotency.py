"""Idempotency of message ids. Within the window, a repeated message returns its task, and a different message with the
same id is a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys, Operation, Scope
from a2a_celery.store.operation import script
from a2a_celery.store.tasks.commands import IdempotencyKey, continue_task, create_task
from a2a_celery.store.tasks.results import Begun, Conflict, Created, Ended, Known, Missing, Waiting
from tests.support.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, run_concurrently, status
from tests.support.waiting import eventually_async

WINDOW_MS = 600_000
HELLO = IdempotencyKey("m", "digest of hello", WINDOW_MS)
OTHER = IdempotencyKey("m", "digest of another", WINDOW_MS)


class Messages:
    """Test helper that sends messages with idempotency keys."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def new(self, task_id: str, key: IdempotencyKey | None = HELLO, scope: Scope = ANN) -> Any:
        message_request = request("hello", task_id, CONTEXT)
        call = create_task(
            self._keys, scope, task_id, CONTEXT, message_request, caller=b"{}", retention=RETENTION, idempotency_key=key
        )
        return await self._store.run(call)

    async def further(self, task_id: str, key: IdempotencyKey = HELLO, *, context: str = "", nonce: str = "n") -> Any:
        message_request = request("more", task_id, CONTEXT)
        call = continue_task(
            self._keys, ANN, task_id, message_request, context, caller=b"{}", nonce=nonce, idempotency_key=key
        )
        return await self._store.run(call)


@pytest.fixture
async def gateways(redis_server: EmbeddedRedis, store: AsyncStore) -> AsyncIterator[list[AsyncStore]]:
    """Four clients of the store, which stand for four gateways."""
    stores = [AsyncStore(redis_server.store_url) for _ in range(4)]
    yield stores
    for client in stores:
        await client.aclose()


async def test_the_same_message_is_the_same_task_and_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    messages = Messages(store, keys)
    assert isinstance(await messages.new("a"), Created)
    data_before = await seeds.all_values()

    second_result = await messages.new("b")

    assert second_result == Known("a", version=1, preceding_turns=0)
    assert await seeds.all_values() == data_before


async def test_a_repeated_call_is_answered_as_the_first_was(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)

    first, second = await messages.new("a"), await messages.new("a")

    assert isinstance(second, Created)
    assert second.task.status.timestamp == first.task.status.timestamp


async def test_another_message_under_the_same_id_is_a_conflict(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    await messages.new("a")
    data_before = await seeds.all_values()

    assert await messages.new("b", OTHER) == Conflict()
    assert await messages.further("a", OTHER) == Conflict()
    assert await seeds.all_values() == data_before


async def test_many_at_the_same_time_make_one_task(gateways: list[AsyncStore], keys: Keys) -> None:
    answers = await run_concurrently(
        *(Messages(store, keys).new(f"t{n}") for n, store in enumerate(gateways * 8)),
    )

    [creation] = [answer for answer in answers if isinstance(answer, Created)]
    assert {answer.task_id for answer in answers if isinstance(answer, Known)} == {creation.task.id}
    assert await gateways[0].redis.zcard(keys.dispatch) == 1


async def test_another_caller_may_use_the_same_id(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)
    await messages.new("a")

    assert isinstance(await messages.new("b", OTHER, scope=BOB), Created)
    assert await messages.new("c", HELLO) == Known("a", 1, 0)


async def test_without_the_option_every_message_is_new(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)

    assert isinstance(await messages.new("a", None), Created)
    assert isinstance(await messages.new("b", None), Created)
    assert not await store.redis.exists(keys.message(ANN, "m"))


async def test_an_id_expires_after_its_window(store: AsyncStore, keys: Keys) -> None:
    messages, key = Messages(store, keys), keys.message(ANN, "m")
    await messages.new("a", HELLO)
    assert WINDOW_MS - 60_000 < await store.redis.pttl(key) <= WINDOW_MS
    await store.redis.pexpire(key, 1)  # the window is over

    async def forgotten() -> bool:
        return not await store.redis.exists(key)

    await eventually_async(forgotten)
    assert isinstance(await messages.new("b", OTHER), Created)


async def test_a_deleted_task_frees_the_id_of_its_message(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)
    await messages.new("a")
    await store.run(Operation(script("delete_task"), keys.task("a"), [str(ANN)], int))

    assert isinstance(await messages.new("b", OTHER), Created)
    assert await messages.new("c", OTHER) == Known("b", 1, 0)


async def test_a_further_message_begins_one_turn(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    turn = await messages.further(task_id)
    assert isinstance(turn, Begun)
    data_before = await seeds.all_values()

    second_result = await messages.further(task_id, nonce="another call")

    assert second_result == Known(task_id, turn.newest.version, 0)
    assert await seeds.all_values() == data_before


async def test_a_repeated_waiting_message_waits_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await messages.further(task_id, IdempotencyKey("first", "d", WINDOW_MS), nonce="1")
    waiting_result = await messages.further(task_id, nonce="2")
    assert isinstance(waiting_result, Waiting)

    assert await messages.further(task_id, nonce="3") == Known(
        task_id, waiting_result.newest.version, preceding_turns=2
    )
    assert await store.redis.llen(keys.task(task_id).turns) == 2
    await seeds.settle_run(claim, status(INPUT_REQUIRED))
    assert await messages.further(task_id, nonce="4") == Known(
        task_id, waiting_result.newest.version, preceding_turns=2
    )


async def test_a_repeated_message_of_an_ended_task_is_recognized(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    turn = await messages.further(task_id)
    await seeds.settle_run(await seeds.claim_run(task_id, run=2), status(COMPLETED))

    assert await messages.further(task_id, nonce="another call") == Known(task_id, turn.newest.version, 0)
    assert await messages.further(task_id, IdempotencyKey("new", "d", WINDOW_MS), nonce="x") == Ended(COMPLETED)


async def test_a_message_that_was_refused_is_not_remembered(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    ended_id, waiting = await seeds.create_task_in(COMPLETED), await seeds.create_task_in(INPUT_REQUIRED)

    assert await messages.further(ended_id) == Ended(COMPLETED)
    assert await messages.further("nobody") == Missing()
    assert isinstance(await messages.further(waiting, OTHER), Begun)


async def test_repeats_of_a_further_message_race_for_one_turn(
    gateways: list[AsyncStore], keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)

    answers = await asyncio.gather(
        *(Messages(store, keys).further(task_id, nonce=f"n{n}") for n, store in enumerate(gateways * 8))
    )

    assert len([answer for answer in answers if isinstance(answer, Begun)]) == 1
    assert len([answer for answer in answers if isinstance(answer, Known)]) == len(answers) - 1
    assert (await seeds.task(task_id)).history[-1].parts[0].text == "more"
