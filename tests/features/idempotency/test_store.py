"""Idempotency of message ids. Within the window, a repeated message returns its task, and a different message with the
same id is a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.refusals import Reason
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task
from a2a_celery.store.tasks.replies import Known
from tests.support.store.replies import begins, reason_of, waits
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, run_concurrently, status
from tests.support.waiting import eventually_async

WINDOW_MS = 600_000
Key = tuple[str, str, int]
"""Id and digest of a message, and ms of the window."""

HELLO = ("m", "digest of hello", WINDOW_MS)
OTHER = ("m", "digest of another", WINDOW_MS)


class Messages:
    """Test helper that sends messages with idempotency keys."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def new(self, task_id: str, key: Key | None = HELLO, scope: Scope = ANN) -> Any:
        message_request = request("hello", task_id, CONTEXT)
        sections = [] if key is None else [IdempotencyKey.of(self._keys, scope, *key)]
        call = create_task(
            self._keys, scope, task_id, CONTEXT, message_request, caller=b"{}", retention=RETENTION, sections=sections
        )
        return await self._store.run(call)

    async def further(self, task_id: str, key: Key = HELLO, *, context: str = "", nonce: str = "n") -> Any:
        message_request = request("more", task_id, CONTEXT)
        sections = [IdempotencyKey.of(self._keys, ANN, *key)]
        call = continue_task(
            self._keys, ANN, task_id, message_request, context, caller=b"{}", nonce=nonce, sections=sections
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
    assert begins(await messages.new("a"))
    data_before = await seeds.all_values()

    second_result = await messages.new("b")

    assert second_result == Known("a", version=1, preceding_turns=0)
    assert await seeds.all_values() == data_before


async def test_a_repeated_call_is_answered_as_the_first_was(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)

    first, second = await messages.new("a"), await messages.new("a")

    assert begins(second)
    assert second.task.status.timestamp == first.task.status.timestamp


async def test_another_message_under_the_same_id_is_a_conflict(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    await messages.new("a")
    data_before = await seeds.all_values()

    assert reason_of(await messages.new("b", OTHER)) is Reason.SAME_MESSAGE_ID
    assert reason_of(await messages.further("a", OTHER)) is Reason.SAME_MESSAGE_ID
    assert await seeds.all_values() == data_before


async def test_many_at_the_same_time_make_one_task(gateways: list[AsyncStore], keys: Keys) -> None:
    answers = await run_concurrently(
        *(Messages(store, keys).new(f"t{n}") for n, store in enumerate(gateways * 8)),
    )

    [creation] = [answer for answer in answers if begins(answer)]
    assert {answer.task_id for answer in answers if isinstance(answer, Known)} == {creation.task.id}
    assert await gateways[0].redis.zcard(keys.dispatch) == 1


async def test_another_caller_may_use_the_same_id(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)
    await messages.new("a")

    assert begins(await messages.new("b", OTHER, scope=BOB))
    assert await messages.new("c", HELLO) == Known("a", 1, 0)


async def test_without_the_option_every_message_is_new(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)

    assert begins(await messages.new("a", None))
    assert begins(await messages.new("b", None))
    assert not await store.redis.exists(IdempotencyKey.of(keys, ANN, *HELLO).key)


async def test_an_id_expires_after_its_window(store: AsyncStore, keys: Keys) -> None:
    messages, key = Messages(store, keys), IdempotencyKey.of(keys, ANN, *HELLO).key
    await messages.new("a", HELLO)
    assert WINDOW_MS - 60_000 < await store.redis.pttl(key) <= WINDOW_MS
    await store.redis.pexpire(key, 1)  # the window is over

    async def forgotten() -> bool:
        return not await store.redis.exists(key)

    await eventually_async(forgotten)
    assert begins(await messages.new("b", OTHER))


async def test_a_deleted_task_frees_the_id_of_its_message(store: AsyncStore, keys: Keys) -> None:
    messages = Messages(store, keys)
    await messages.new("a")
    await store.run(delete_task(keys, ANN, "a"))

    assert begins(await messages.new("b", OTHER))
    assert await messages.new("c", OTHER) == Known("b", 1, 0)


async def test_a_further_message_begins_one_turn(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    turn = await messages.further(task_id)
    assert begins(turn)
    data_before = await seeds.all_values()

    second_result = await messages.further(task_id, nonce="another call")

    assert second_result == Known(task_id, turn.newest.version, 0)
    assert await seeds.all_values() == data_before


async def test_a_repeated_waiting_message_waits_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await messages.further(task_id, ("first", "d", WINDOW_MS), nonce="1")
    waiting_result = await messages.further(task_id, nonce="2")
    assert waits(waiting_result)

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
    further = await messages.further(task_id, ("new", "d", WINDOW_MS), nonce="x")
    assert reason_of(further) is Reason.ENDED


async def test_a_message_that_was_refused_is_not_remembered(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    messages = Messages(store, keys)
    ended_id, waiting = await seeds.create_task_in(COMPLETED), await seeds.create_task_in(INPUT_REQUIRED)

    assert reason_of(await messages.further(ended_id)) is Reason.ENDED
    assert reason_of(await messages.further("nobody")) is Reason.MISSING
    assert begins(await messages.further(waiting, OTHER))


async def test_repeats_of_a_further_message_race_for_one_turn(
    gateways: list[AsyncStore], keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)

    answers = await asyncio.gather(
        *(Messages(store, keys).further(task_id, nonce=f"n{n}") for n, store in enumerate(gateways * 8))
    )

    assert len([answer for answer in answers if begins(answer)]) == 1
    assert len([answer for answer in answers if isinstance(answer, Known)]) == len(answers) - 1
    assert (await seeds.task(task_id)).history[-1].parts[0].text == "more"
