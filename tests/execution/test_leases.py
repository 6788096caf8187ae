"""Lease keeper of a worker. Runs with renewed leases stay claimed, and runs with expired leases are abandoned."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.process.leases import EXPIRY_CHECK_INTERVAL, MAX_EARLY_CANCELS, LeaseKeeper
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from tests.support.clocks import ManualClock
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request
from tests.support.waiting import eventually_async

T = TypeVar("T")


@dataclass
class FakeRun:
    """Run that records the requests that it receives."""

    ref: RunRef
    token: str
    requests: list[str] = field(default_factory=list)
    may_be_elsewhere: bool = True

    def ask_to_cancel(self) -> None:
        self.requests.append("cancel")

    def ask_to_interrupt(self) -> None:
        self.requests.append("interrupt")

    def message_arrived(self) -> None:
        self.requests.append("message")

    def give_up(self) -> None:
        self.requests.append("give up")


class UnreachableStore(AsyncStore):
    """Store that cannot be reached while `down` is true."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.down = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.operations = 0

    async def run(self, operation: Operation[T]) -> T:
        self.operations += 1
        await self.answers.wait()
        if self.down:
            raise StoreUnavailable("unreachable")
        return await self._store.run(operation)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def unreachable(store: AsyncStore) -> UnreachableStore:
    return UnreachableStore(store)


@pytest.fixture
def keeper(unreachable: UnreachableStore, keys: Keys, clock: ManualClock) -> LeaseKeeper:
    return LeaseKeeper(unreachable, keys, lease_ttl=15.0, clock=clock)


async def run_of(seeds: Seeds) -> FakeRun:
    claim = await seeds.claim_run()
    return FakeRun(claim.ref, claim.token)


async def test_a_tick_renews_all_leases(store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper) -> None:
    run = await run_of(seeds)
    await store.redis.zadd(keys.leases, {run.ref.name: 1})

    with keeper.renewing(run):
        await keeper.tick()

    assert await store.redis.zscore(keys.leases, run.ref.name) > 1
    assert run.requests == []


async def test_only_a_lost_run_is_given_up(store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper) -> None:
    lost_run, other = await run_of(seeds), await run_of(seeds)
    await store.redis.hset(keys.task(lost_run.ref.task_id).record, "token", "another's")

    with keeper.renewing(lost_run), keeper.renewing(other):
        await keeper.tick()

    assert (lost_run.requests, other.requests) == (["give up"], [])


async def test_a_cancel_request_reaches_only_its_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper
) -> None:
    canceled_run, other = await run_of(seeds), await run_of(seeds)
    await store.run(request_cancel(keys, ANN, canceled_run.ref.task_id, CONTEXT))

    with keeper.renewing(canceled_run), keeper.renewing(other):
        await keeper.tick()

    assert (canceled_run.requests, other.requests) == (["cancel"], [])


async def test_a_message_on_the_channel_reaches_the_run_it_names(seeds: Seeds, keeper: LeaseKeeper) -> None:
    first, other = await run_of(seeds), await run_of(seeds)

    with keeper.renewing(first), keeper.renewing(other):
        for effect in ("", " steer", " interrupt", " of a later release"):
            keeper.notified(f"{first.ref.name}{effect}".encode())
        keeper.notified(b"unknown.1")
    keeper.notified(other.ref.name.encode())

    assert (first.requests, other.requests) == (["cancel", "message", "interrupt"], [])


async def test_a_run_learns_of_messages_also_without_a_notification(
    store: AsyncStore, keys: Keys, seeds: Seeds, keeper: LeaseKeeper
) -> None:
    steered_run, interrupted_run, other = [await run_of(seeds) for _ in range(3)]
    for run, on_message in ((steered_run, "steer"), (interrupted_run, "interrupt")):
        message = request("more", run.ref.task_id, CONTEXT)
        task_id = run.ref.task_id
        await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce="n", on_message=on_message))

    with keeper.renewing(steered_run), keeper.renewing(interrupted_run), keeper.renewing(other):
        await keeper.tick()

    assert (steered_run.requests, interrupted_run.requests, other.requests) == (["message"], ["interrupt"], [])


async def test_an_outage_shorter_than_the_lease_has_no_effect(
    seeds: Seeds, keeper: LeaseKeeper, unreachable: UnreachableStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)
    unreachable.down = True

    with keeper.renewing(run):
        clock.advance(14.9)
        await keeper.tick()

    assert run.requests == []


async def test_an_outage_longer_than_the_lease_loses_the_run(
    seeds: Seeds, keeper: LeaseKeeper, unreachable: UnreachableStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)

    with keeper.renewing(run):
        clock.advance(10)
        await keeper.tick()  # renewed for fifteen seconds
        unreachable.down = True
        clock.advance(14)
        await keeper.tick()
        assert run.requests == []
        clock.advance(2)
        await keeper.tick()

    assert run.requests == ["give up"]


async def test_a_run_with_an_expired_lease_does_not_wait_for_a_silent_store(
    seeds: Seeds, keeper: LeaseKeeper, unreachable: UnreachableStore, clock: ManualClock
) -> None:
    run, at_most_once = await run_of(seeds), await run_of(seeds)
    at_most_once.may_be_elsewhere = False

    with keeper.renewing(run), keeper.renewing(at_most_once):
        clock.advance(16)  # like a frozen process
        unreachable.answers.clear()
        tick = asyncio.create_task(keeper.tick())
        await clock.until_waiting(EXPIRY_CHECK_INTERVAL)
        clock.advance(EXPIRY_CHECK_INTERVAL)
        await eventually_async(lambda: _is(bool(run.requests)), what="its agent is stopped")
        assert not tick.done()
        unreachable.answers.set()
        await tick

    assert (run.requests, at_most_once.requests) == (["give up"], [])


async def _is(fact: bool) -> bool:
    return fact


async def test_a_run_that_cannot_be_elsewhere_continues_during_an_outage(
    seeds: Seeds, keeper: LeaseKeeper, unreachable: UnreachableStore, clock: ManualClock
) -> None:
    run = await run_of(seeds)
    run.may_be_elsewhere = False

    with keeper.renewing(run):
        unreachable.down = True
        clock.advance(600)
        await keeper.tick()
        unreachable.down = False
        await keeper.tick()

    assert run.requests == []


async def test_without_leases_the_store_is_not_called(
    keeper: LeaseKeeper, unreachable: UnreachableStore, seeds: Seeds
) -> None:
    with ExitStack() as stack:
        stack.enter_context(keeper.renewing(await run_of(seeds)))

    await keeper.tick()

    assert unreachable.operations == 0


async def test_leases_are_renewed_after_a_third_of_their_time(
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
    await keeper.stop()


def test_a_cancel_that_arrives_before_the_reply_to_the_claim_cancels_the_run(keeper: LeaseKeeper) -> None:
    run, other_run = FakeRun(RunRef("t", 1), "token"), FakeRun(RunRef("t", 2), "token")

    keeper.notified(b"t.1")
    keeper.notified(b"t.1 steer")

    for leased_run in (run, other_run):
        with keeper.renewing(leased_run):
            pass
    assert (run.requests, other_run.requests) == (["cancel"], [])


def test_the_number_of_early_cancels_is_bounded(keeper: LeaseKeeper) -> None:
    runs = [FakeRun(RunRef("t", number), "token") for number in range(MAX_EARLY_CANCELS + 1)]
    for run in runs:
        keeper.notified(run.ref.name.encode())

    for run in runs:
        with keeper.renewing(run):
            pass

    assert [bool(run.requests) for run in runs] == [False] + [True] * MAX_EARLY_CANCELS
