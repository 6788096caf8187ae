"""The lease keeper: what is renewed stays ours, what isn't counts as lost."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.process.leases import EXPIRY_CHECK_INTERVAL, LeaseKeeper
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import RunRef
from a2a_celery.store.tasks.commands import request_cancel
from tests.support.clocks import ManualClock
from tests.support.seeds import ANN, CONTEXT, Seeds
from tests.support.waiting import eventually_async

T = TypeVar("T")


@dataclass
class FakeRun:
    """A run that notes what it was told."""

    ref: RunRef
    token: str
    told: list[str] = field(default_factory=list)
    may_be_elsewhere: bool = True

    def ask_to_cancel(self) -> None:
        self.told.append("cancel")

    def give_up(self) -> None:
        self.told.append("give up")


class AwayStore(AsyncStore):
    """A store that can't be reached while `away`."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        self.asked += 1
        await self.answers.wait()
        if self.away:
            raise StoreUnavailable("away")
        return await self._store.run(operation)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def away(store: AsyncStore) -> AwayStore:
    return AwayStore(store)


@pytest.fixture
def keeper(away: AwayStore, keys: Keys, clock: ManualClock) -> LeaseKeeper:
    return LeaseKeeper(away, keys, lease_ttl=15.0, clock=clock)


async def run_of(seeds: Seeds) -> FakeRun:
    """A claimed run."""
    claim = await seeds.claimed()
    return FakeRun(claim.ref, claim.token)


async def test_a_tick_renews_what_is_leased(store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper) -> None:
    run = await run_of(seeds)
    await store.redis.zadd(keys.leases, {run.ref.name: 1})

    with keeper.renewing(run):
        await keeper.tick()

    assert await store.redis.zscore(keys.leases, run.ref.name) > 1
    assert run.told == []


async def test_a_lost_run_is_told_to_give_up_and_no_other(
    store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper
) -> None:
    lost, kept = await run_of(seeds), await run_of(seeds)
    await store.redis.hset(keys.task(lost.ref.task_id).record, "token", "another's")

    with keeper.renewing(lost), keeper.renewing(kept):
        await keeper.tick()

    assert (lost.told, kept.told) == (["give up"], [])


async def test_a_run_whose_cancel_was_asked_is_told(
    store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper
) -> None:
    asked, kept = await run_of(seeds), await run_of(seeds)
    await store.run(request_cancel(keys, ANN, asked.ref.task_id, CONTEXT))

    with keeper.renewing(asked), keeper.renewing(kept):
        await keeper.tick()

    assert (asked.told, kept.told) == (["cancel"], [])


async def test_a_message_on_the_channel_reaches_the_run_it_names(seeds: Seeds, keeper: LeaseKeeper) -> None:
    one, other = await run_of(seeds), await run_of(seeds)

    with keeper.renewing(one), keeper.renewing(other):
        keeper.asked_to_cancel(one.ref.name.encode())
        keeper.asked_to_cancel(b"unknown.1")
    keeper.asked_to_cancel(other.ref.name.encode())

    assert (one.told, other.told) == (["cancel"], [])


async def test_a_store_that_is_away_for_less_than_the_lease_changes_nothing(
    seeds: Seeds, keeper: LeaseKeeper, away: AwayStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)
    away.away = True

    with keeper.renewing(run):
        clock.advance(14.9)
        await keeper.tick()

    assert run.told == []


async def test_a_store_that_is_away_longer_than_the_lease_loses_the_run(
    seeds: Seeds, keeper: LeaseKeeper, away: AwayStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)

    with keeper.renewing(run):
        clock.advance(10)
        await keeper.tick()  # renewed: fifteen seconds from here
        away.away = True
        clock.advance(14)
        await keeper.tick()
        assert run.told == []
        clock.advance(2)
        await keeper.tick()

    assert run.told == ["give up"]


async def test_a_run_whose_lease_is_over_does_not_wait_for_a_silent_store(
    seeds: Seeds, keeper: LeaseKeeper, away: AwayStore, clock: ManualClock
) -> None:
    run, at_most_once = await run_of(seeds), await run_of(seeds)
    at_most_once.may_be_elsewhere = False

    with keeper.renewing(run), keeper.renewing(at_most_once):
        clock.advance(16)  # as for a process that was frozen
        away.answers.clear()
        tick = asyncio.create_task(keeper.tick())
        await clock.until_waiting(EXPIRY_CHECK_INTERVAL)
        clock.advance(EXPIRY_CHECK_INTERVAL)
        await eventually_async(lambda: _is(bool(run.told)), what="its agent is stopped")
        assert not tick.done()
        away.answers.set()
        await tick

    assert (run.told, at_most_once.told) == (["give up"], [])


async def _is(fact: bool) -> bool:
    return fact


async def test_a_run_that_nobody_else_may_get_goes_on_while_the_store_is_away(
    seeds: Seeds, keeper: LeaseKeeper, away: AwayStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)
    run.may_be_elsewhere = False

    with keeper.renewing(run):
        away.away = True
        clock.advance(600)
        await keeper.tick()
        away.away = False
        await keeper.tick()

    assert run.told == []


async def test_nothing_held_asks_nothing(keeper: LeaseKeeper, away: AwayStore, seeds: Seeds) -> None:
    with ExitStack() as stack:
        stack.enter_context(keeper.renewing(await run_of(seeds)))

    await keeper.tick()

    assert away.asked == 0


async def test_leases_are_renewed_when_a_third_of_one_is_over(
    store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper, clock: ManualClock
) -> None:
    run = await run_of(seeds)

    with keeper.renewing(run):
        keeper.start()
        for _ in range(2):
            await store.redis.zadd(keys.leases, {run.ref.name: 1})
            await clock.until_waiting(5.0)
            clock.advance(5.0)
            await clock.until_waiting(5.0)
            assert await store.redis.zscore(keys.leases, run.ref.name) > 1
    assert keeper._loop_task is not None
    keeper._loop_task.cancel()
