"""Jumps of the store's clock. No live worker loses its run, and no due time is postponed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from a2a.types import TaskStatus, TaskStatusUpdateEvent

from a2a_celery.crypto.sealing import Sealer
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.push import Poster
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.archiving import acquire_archivable
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.admin.start_check import ClockReading, read_clock, record_heartbeat, watchers
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim, RunRef, claim_run, settle_run
from a2a_celery.store.runs.publication import mark_published
from a2a_celery.store.runs.reminders import Reminder, pack_reminders
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.watcher.recoverer import PauseExpirer, Recoverer
from a2a_celery.watcher.reminder_poster import ReminderPoster
from a2a_celery.watcher.role_loop import StoreClock
from a2a_celery.watcher.webhooks.deliverer import Deliverer
from tests.support.clocks import ManualClock
from tests.support.dispatcher_setup import DUE_NOW_US, Broker, create_operation, dispatcher
from tests.support.moved_clock import MovedClock
from tests.support.receiver import receiver
from tests.support.restarts import mortal_redis
from tests.support.seeds import Seeds, run_concurrently, status

from .test_deliverer import SETTINGS, WebhookSeeds

HOUR = 3600
LEASE_TTL = 15.0
LEASE_US = int(LEASE_TTL * 1_000_000)


@pytest.fixture
async def store(tmp_path: Path, wall_clock: MovedClock) -> AsyncIterator[AsyncStore]:
    """Client of a store with the clock `wall_clock`."""
    with mortal_redis(tmp_path / "store", wall_clock) as server:
        store = AsyncStore(server.store_url)
        yield store
        await store.aclose()
        server.die()  # a graceful shutdown takes 0.1 s


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


async def claim_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> Claim:
    """Create a task and claim its run."""
    ref = RunRef(await seeds.create_task(), 1)
    claim = await store.run(claim_run(keys, ref, token="t", runner="r", lease_us=LEASE_US, working=True))
    assert isinstance(claim, Claim)
    return claim


async def pause_task(store: AsyncStore, keys: Keys, seeds: Seeds, pause_us: int) -> str:
    """Create a task that waits for its client for `pause_us`. Return the task's id."""
    claim = await claim_task(store, keys, seeds)
    timeout_event = TaskStatusUpdateEvent(task_id=claim.ref.task_id, status=TaskStatus(state=FAILED))
    pause = {"events": [status(INPUT_REQUIRED, "well?")], "pause_us": pause_us, "pause_timeout": timeout_event}
    await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=0, **pause))
    return claim.ref.task_id


async def seconds_left(store: AsyncStore, keys: Keys, key: str) -> list[float]:
    """Return the seconds, by the store's clock, until each member of `key` is due."""
    now_us = (await store.run(read_clock(keys))).time_us
    return [(due - now_us) / 1_000_000 for _, due in await store.redis.zrange(key, 0, -1, withscores=True)]


async def test_a_clock_that_is_set_forward_takes_no_run_from_a_living_worker(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    claim = await claim_task(store, keys, seeds)
    store_clock = StoreClock(store, keys, LEASE_TTL)
    recoverer = Recoverer(store, keys, store_clock=store_clock)
    await store_clock.tick()

    wall_clock.set_offset(HOUR)
    await recoverer.tick()  # before the jump is noticed
    await store_clock.tick()
    await recoverer.tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
    renewal = await store.run(renew_runs(keys, [(claim.ref, claim.token)], lease_us=LEASE_US))
    assert renewal.lost == frozenset()


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
async def test_after_a_jump_a_lost_run_lapses_after_one_lease(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock, offset: float
) -> None:
    await claim_task(store, keys, seeds)
    store_clock = StoreClock(store, keys, LEASE_TTL)
    await store_clock.tick()

    wall_clock.set_offset(offset)
    await store_clock.tick()

    assert await seconds_left(store, keys, keys.leases) == [pytest.approx(LEASE_TTL, abs=5)]


async def test_a_lease_from_before_an_unnoticed_jump_backward_is_shortened(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    await claim_task(store, keys, seeds)
    wall_clock.set_offset(-HOUR)
    store_clock = StoreClock(store, keys, LEASE_TTL)
    await store_clock.tick()

    await Recoverer(store, keys, store_clock=store_clock).tick()

    assert await seconds_left(store, keys, keys.leases) == [pytest.approx(4 * LEASE_TTL, abs=5)]


async def test_after_a_jump_backward_due_times_are_kept(store: AsyncStore, keys: Keys, wall_clock: MovedClock) -> None:
    store_clock = StoreClock(store, keys, LEASE_TTL)
    await store_clock.tick()
    now_us = (await store.run(read_clock(keys))).time_us
    members = {f"{number}": now_us + 60_000_000 + number for number in range(2_500)}
    lists = [keys.dispatch, keys.suspended, keys.deliveries, keys.requested_posts, keys.canvases]
    for key in lists:
        await store.redis.zadd(key, {**members, "overdue": now_us - 60_000_000})

    wall_clock.set_offset(-HOUR)
    await store_clock.tick()

    for key in lists:
        seconds = await seconds_left(store, keys, key)
        assert len(seconds) == 2_501
        assert max(seconds) < 61


async def test_a_pause_is_not_cut_short_by_a_jump_forward(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    task_id = await pause_task(store, keys, seeds, HOUR // 2 * 1_000_000)
    store_clock = StoreClock(store, keys, LEASE_TTL)
    ender = PauseExpirer(store, keys, store_clock)
    await store_clock.tick()

    wall_clock.set_offset(HOUR)
    await ender.tick()  # before the jump is noticed
    await store_clock.tick()
    await ender.tick()

    assert (await seeds.task(task_id)).status.state == INPUT_REQUIRED
    assert await seconds_left(store, keys, keys.pauses) == [pytest.approx(HOUR / 2, abs=5)]


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
async def test_a_reminder_keeps_its_time_after_a_jump(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock, offset: float
) -> None:
    claim = await seeds.claim_run()
    reminder = Reminder(int(HOUR // 2 * 1_000_000), status(INPUT_REQUIRED))
    settle = settle_run(
        keys,
        claim.ref,
        token=claim.token,
        written_count=0,
        events=[status(INPUT_REQUIRED, "well?")],
        reminders=pack_reminders(keys, [reminder], None),
    )
    await store.run(settle)
    store_clock = StoreClock(store, keys, LEASE_TTL)
    poster = ReminderPoster(store, keys, store_clock)
    await store_clock.tick()

    wall_clock.set_offset(offset)
    await poster.tick()  # before the jump is noticed
    await store_clock.tick()
    await poster.tick()

    assert await seconds_left(store, keys, keys.reminders) == [pytest.approx(HOUR / 2, abs=5)]


@pytest.mark.parametrize("is_corrected", [False, True])
async def test_a_jump_forward_is_no_day_of_failures(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock, is_corrected: bool
) -> None:
    hook_seeds, secrets = WebhookSeeds(seeds), SETTINGS.secret_keys
    store_clock, poster = StoreClock(store, keys, LEASE_TTL), Poster(SETTINGS.push_networks)
    role = Deliverer(store, keys, Sealer(secrets), poster, secrets, LEASE_TTL, store_clock=store_clock)
    with receiver() as hooks:
        hooks.plan("/hook", [], then=500)
        task_id = await hook_seeds.with_due_events(hooks.url())
        for jump in (0, 2 * 24 * HOUR):
            wall_clock.set_offset(jump)
            if not jump or is_corrected:
                await store_clock.tick()
            await role.tick()
            await asyncio.gather(*role._deliveries)
        await role.aclose()

    delivery = await hook_seeds.webhooks.delivery(task_id, "c0")
    assert (delivery.state, delivery.failures) == ("failing", 2)


@pytest.mark.parametrize("offsets", [[HOUR / 2], [-HOUR], [HOUR / 2, -HOUR]])
async def test_a_run_that_was_lost_before_a_jump_is_published_again(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock, offsets: list[float]
) -> None:
    broker = Broker()
    broker.waiting = True  # its queue is long and may contain the run
    watcher, store_clock = dispatcher(store, keys, broker), StoreClock(store, keys, LEASE_TTL)
    await store_clock.tick()
    await store.run(create_operation(keys, "t"))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
    await watcher.tick()
    assert broker.taken == []

    for offset in offsets:
        wall_clock.set_offset(offset)
        await store_clock.tick()
    await store.redis.zadd(keys.dispatch, {"t.1": 1})
    await watcher.tick()

    assert broker.taken == [("echo", "t", 1)]


async def test_a_jump_is_corrected_once_however_many_watchers_notice_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    await pause_task(store, keys, seeds, HOUR * 1_000_000)
    clocks = [StoreClock(store, keys, LEASE_TTL) for _ in range(4)]
    await run_concurrently(*(clock.tick() for clock in clocks))

    wall_clock.set_offset(HOUR)
    await run_concurrently(*(clock.tick() for clock in clocks))
    await run_concurrently(*(clock.tick() for clock in clocks))

    assert (await store.run(read_clock(keys))).corrections == 1
    assert await seconds_left(store, keys, keys.pauses) == [pytest.approx(HOUR, abs=5)]


@pytest.mark.parametrize("pass_time", [ManualClock.advance, ManualClock.suspend], ids=["stopped", "host suspended"])
async def test_a_pause_between_two_watchers_is_no_jump(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock, pass_time: Callable[[ManualClock, float], None]
) -> None:
    clock = ManualClock()
    store_clock = StoreClock(store, keys, LEASE_TTL, clock)
    await store_clock.tick()

    wall_clock.set_offset(HOUR)
    pass_time(clock, HOUR)
    await store_clock.tick()

    assert (await store.run(read_clock(keys))).corrections == 0


async def test_a_slow_response_is_no_jump(store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = ManualClock(), store.run

    async def run_slowly(operation: Operation[ClockReading]) -> ClockReading:
        reading = await run(operation)
        clock.advance(10)
        return reading

    monkeypatch.setattr(store, "run", run_slowly)
    store_clock = StoreClock(store, keys, LEASE_TTL, clock)
    for _ in range(2):
        await store_clock.tick()

    assert (await run(read_clock(keys))).corrections == 0


@pytest.mark.parametrize(("offset", "corrections"), [(HOUR, 1), (0, 0)])
async def test_a_jump_is_detected_without_the_watcher_s_wall_clock(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock, offset: float, corrections: int
) -> None:
    """The watcher's wall clock may be set together with the store's clock, or separately."""
    clock = ManualClock()
    store_clock = StoreClock(store, keys, LEASE_TTL, clock)
    await store_clock.tick()

    wall_clock.set_offset(offset)
    clock.advance_wall_clock(HOUR)
    await store_clock.tick()

    assert (await store.run(read_clock(keys))).corrections == corrections


async def test_after_its_host_was_suspended_a_watcher_lets_workers_renew_their_leases_first(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    clock = ManualClock()
    recoverer = Recoverer(store, keys, grace=LEASE_TTL / 2, clock=clock)
    for _ in range(3):  # until the grace period after the start is over
        await recoverer.tick()
        clock.advance(LEASE_TTL / 3)
    claim = await claim_task(store, keys, seeds)

    wall_clock.set_offset(HOUR)
    clock.suspend(HOUR)
    await recoverer.tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING


async def test_after_a_jump_backward_stopped_watchers_are_not_counted(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock
) -> None:
    for name in ("gone", "here"):
        await store.run(record_heartbeat(keys, name, schema=SCHEMA, archives=False))

    wall_clock.set_offset(-HOUR)
    await store.run(record_heartbeat(keys, "here", schema=SCHEMA, archives=False))

    assert await store.run(watchers(keys)) == ["here"]


async def test_after_a_jump_backward_another_watcher_may_archive(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock
) -> None:
    lease_ms = int(LEASE_TTL * 1000)
    await store.run(acquire_archivable(keys, archiver="gone", limit=1, lease_ms=lease_ms))

    wall_clock.set_offset(-HOUR)

    due = await store.run(acquire_archivable(keys, archiver="here", limit=1, lease_ms=lease_ms))
    assert due.tasks == []
