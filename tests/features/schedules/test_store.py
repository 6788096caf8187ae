"""Ticks of schedules: one task for each tick, overlap rules, and lists of a schedule's tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.schedules.section import (
    HandledTick,
    Tick,
    schedule_index,
    skipped_ticks,
    time_of_tick,
)
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.scan import state_indexes
from a2a_celery.store.tasks.commands import create_task, request_cancel
from tests.store.test_cost import Meter
from tests.support.processes.restarts import allow_writes, refuse_writes
from tests.support.store.leaks import leaks
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, BOB, RETENTION, Seeds, request, run_concurrently, status

AT = 1_900_000_000_000_000
MINUTE = 60_000_000
NIGHTLY = Tick("nightly report: {1}", AT)


def later_tick(minutes: float, tick: Tick = NIGHTLY, **fields: Any) -> Tick:
    return replace(tick, at_us=AT + round(minutes * MINUTE), **fields)


class Schedule:
    """Test helper that creates tasks for the ticks of a schedule."""

    def __init__(self, seeds: Seeds) -> None:
        self.seeds, self.store, self.keys = seeds, seeds.store, seeds.keys

    def create(self, tick: Tick, scope: Scope = ANN, **options: Any) -> Any:
        task_id = tick.task_id(self.keys)
        message_request = request(task_id=task_id, context_id=task_id)
        return create_task(
            self.keys,
            scope,
            task_id,
            task_id,
            message_request,
            caller=b"{}",
            retention=RETENTION,
            metadata=tick.metadata(),
            sections=[tick.section(self.keys, RETENTION)],
            **options,
        )

    async def tick(self, tick: Tick, **options: Any) -> Any:
        return await self.store.run(self.create(tick, **options))

    async def start_task(self, tick: Tick, **options: Any) -> str:
        result = await self.tick(tick, **options)
        assert begins(result), result
        return result.task.id

    async def ids_by_state(self) -> dict[int, list[str]]:
        """Return the ids of the schedule's tasks by state."""
        tasks_by_state = {}
        for name in state_indexes(schedule_index(self.keys, NIGHTLY.schedule)):
            tags = [tag.decode() for tag in await self.store.redis.zrange(name, 0, -1)]
            if tags:
                tasks_by_state[int(name.rpartition(":")[2])] = tags
        return tasks_by_state


@pytest.fixture
def schedule(seeds: Seeds) -> Schedule:
    return Schedule(seeds)


async def test_a_tick_starts_one_task_that_names_its_schedule(schedule: Schedule, seeds: Seeds, keys: Keys) -> None:
    first = await schedule.tick(NIGHTLY)
    second_result = await schedule.tick(NIGHTLY)

    task = await seeds.task(first.task.id)
    assert begins(second_result)
    assert second_result.task.id == first.task.id
    assert dict(task.metadata) == dict(first.task.metadata)
    assert dict(task.metadata) == {
        "a2a_celery/schedule": NIGHTLY.schedule,
        "a2a_celery/scheduledAt": time_of_tick(AT).isoformat(),
    }
    assert await schedule.ids_by_state() == {SUBMITTED: [task.id]}
    await seeds.require_consistent(task.id)
    assert await leaks(seeds.store, keys) == []


async def test_a_tick_is_handled_once_even_if_its_schedule_has_another_owner(schedule: Schedule) -> None:
    first = await schedule.start_task(NIGHTLY)

    assert await schedule.tick(NIGHTLY, scope=BOB) == HandledTick("repeated", first)
    assert await schedule.tick(replace(NIGHTLY, overlap="allow"), scope=BOB) == HandledTick("repeated", first)


async def test_equal_ticks_at_once_start_one_task(schedule: Schedule, seeds: Seeds) -> None:
    ticks = [later_tick(n / 100, window_us=MINUTE) for n in range(8)]
    results = await run_concurrently(*(schedule.tick(tick) for tick in ticks))

    [creation] = [result for result in results if begins(result)]
    assert [result for result in results if result is not creation] == [HandledTick("repeated", creation.task.id)] * 7


async def test_a_tick_stays_handled_after_its_task_was_removed(
    schedule: Schedule, seeds: Seeds, store: AsyncStore, keys: Keys
) -> None:
    task_id = await schedule.start_task(NIGHTLY)
    claim = await seeds.claim_run(task_id)
    await seeds.settle_run(claim, status(COMPLETED))
    await store.redis.delete(*(key for key in keys.task(task_id) if ":chunks" not in key))

    assert await schedule.tick(NIGHTLY) == HandledTick("repeated", task_id)
    assert 0 < await store.redis.ttl(f"{schedule_index(keys, NIGHTLY.schedule)}ticks") <= 86400


@pytest.mark.parametrize(("minutes", "equal"), [(-1.0, True), (0.9, True), (-1.1, False), (1.1, False)])
async def test_ticks_within_the_window_are_equal(schedule: Schedule, minutes: float, equal: bool) -> None:
    task_id = await schedule.start_task(replace(NIGHTLY, overlap="allow"))

    result = await schedule.tick(later_tick(minutes, window_us=MINUTE, overlap="allow"))

    assert (result == HandledTick("repeated", task_id)) is equal


async def test_a_tick_is_skipped_while_a_task_runs(schedule: Schedule, seeds: Seeds, store: AsyncStore) -> None:
    task_id = await schedule.start_task(NIGHTLY)
    results = [await schedule.tick(later_tick(1))]
    claim = await seeds.claim_run(task_id)
    results.append(await schedule.tick(later_tick(2)))
    await seeds.settle_run(claim, status(COMPLETED))

    assert results == [HandledTick("skipped"), HandledTick("skipped")]
    assert await schedule.tick(later_tick(1)) == HandledTick("repeated")
    assert begins(await schedule.tick(later_tick(3)))
    ticks = await store.run(skipped_ticks(seeds.keys, NIGHTLY.schedule))
    assert ticks == [time_of_tick(AT + n * MINUTE) for n in (2, 1)]


async def test_a_full_store_starts_no_task_and_shows_skipped_ticks(
    schedule: Schedule, store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    await schedule.start_task(NIGHTLY)
    await schedule.tick(later_tick(1))
    refuse_writes(redis_server, "OOM")
    try:
        with pytest.raises(StoreUnavailable):
            await schedule.tick(later_tick(2, overlap="allow"))
        with pytest.raises(StoreUnavailable):
            await schedule.tick(later_tick(2))
        ticks = await store.run(skipped_ticks(keys, NIGHTLY.schedule))
    finally:
        allow_writes(redis_server)

    assert ticks == [time_of_tick(AT + MINUTE)]
    assert await store.run(skipped_ticks(keys, NIGHTLY.schedule)) == ticks
    assert begins(await schedule.tick(later_tick(2, overlap="allow")))


async def test_a_task_that_waits_for_its_client_does_not_run(schedule: Schedule, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await schedule.start_task(NIGHTLY))
    await seeds.settle_run(claim, status(INPUT_REQUIRED, "?"))

    assert begins(await schedule.tick(later_tick(1)))


async def test_a_tick_starts_a_task_beside_a_running_task_if_it_may(schedule: Schedule, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await schedule.start_task(NIGHTLY))

    second = await schedule.tick(later_tick(1, overlap="allow"))

    assert not second.is_blocked
    await seeds.settle_run(await seeds.claim_run(second.task.id), status(COMPLETED))
    await seeds.settle_run(claim, status(COMPLETED))


async def test_the_lists_of_a_schedule_end_with_its_tasks(
    schedule: Schedule, seeds: Seeds, store: AsyncStore, keys: Keys
) -> None:
    names = [await schedule.start_task(later_tick(n, overlap="allow")) for n in range(3)]
    claim = await seeds.claim_run(names[0])
    ids_by_state = await schedule.ids_by_state()
    await seeds.settle_run(claim, status(COMPLETED))
    for task_id in names[1:]:
        await store.run(request_cancel(keys, ANN, task_id, task_id))

    assert ids_by_state == {WORKING: names[:1], SUBMITTED: names[1:]}
    assert await schedule.ids_by_state() == {COMPLETED: names[:1], CANCELED: names[1:]}
    assert await leaks(store, keys) == []
    for name in state_indexes(schedule_index(keys, NIGHTLY.schedule)):
        if await store.redis.exists(name):
            assert 0 < await store.redis.ttl(name) <= RETENTION


async def test_the_ticks_of_a_schedule_are_bounded(schedule: Schedule, store: AsyncStore, keys: Keys) -> None:
    ticks = f"{schedule_index(keys, NIGHTLY.schedule)}ticks"
    await store.redis.zadd(ticks, {f"{AT + n} ": AT + n for n in range(1000)})

    new_result = await schedule.tick(later_tick(1))
    too_old = await schedule.tick(later_tick(-1))

    assert begins(new_result)
    assert too_old == HandledTick("repeated")
    assert await store.redis.zcard(ticks) == 1000
    assert await store.redis.zscore(ticks, f"{AT} ") is None


async def test_a_tick_costs_the_same_with_many_ticks_and_tasks(
    schedule: Schedule, store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    meter = Meter(store)
    allowed_tick = replace(NIGHTLY, overlap="allow")
    await schedule.tick(allowed_tick)
    early_cost = await meter.cost_of(schedule.create(later_tick(1, allowed_tick)))
    for n in range(2, 200):
        await schedule.tick(later_tick(n, allowed_tick))

    assert await meter.cost_of(schedule.create(later_tick(200, allowed_tick))) == early_cost
    assert sum(early_cost.values()) <= 25


async def test_a_requeued_task_belongs_to_the_schedule(schedule: Schedule, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await schedule.start_task(NIGHTLY))
    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task(claim.ref.task_id)

    assert await schedule.ids_by_state() == {FAILED: [claim.ref.task_id], SUBMITTED: [new_id]}
    assert (await seeds.task(new_id)).metadata["a2a_celery/schedule"] == NIGHTLY.schedule


async def test_other_tasks_have_no_schedule(seeds: Seeds, store: AsyncStore, keys: Keys) -> None:
    await seeds.create_task(task_id="t")

    assert b"joined_indexes" not in await store.redis.hkeys(keys.task("t").record)
    assert not [name async for name in store.redis.scan_iter(f"{keys.prefix}:schedule:*")]
