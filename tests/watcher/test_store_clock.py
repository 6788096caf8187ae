"""Jumps of the store's clock. No live worker loses its run, and lost runs are recovered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from a2a.types import TaskState, TaskStatus, TaskStatusUpdateEvent

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.archiving import acquire_archivable
from a2a_celery.store.admin.start_check import announce_watcher, watchers
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim, claim_run, settle_run
from a2a_celery.store.runs.publication import mark_published
from a2a_celery.store.runs.recovery import LapsedRuns
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.telemetry.logs import ABOUT
from a2a_celery.telemetry.names import Action
from a2a_celery.watcher.recoverer import MAX_LEASE_FACTOR, PauseExpirer, Recoverer
from tests.support.clocks import StoreTime
from tests.support.processes.moved_clock import MovedClock
from tests.support.processes.restarts import mortal_redis
from tests.support.store.dispatcher_setup import DUE_NOW_US, Broker, create_operation, dispatcher
from tests.support.store.seeds import Seeds, status

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


@pytest.fixture
def clock(wall_clock: MovedClock) -> StoreTime:
    return StoreTime(wall_clock)


@pytest.fixture
async def recoverer(store: AsyncStore, keys: Keys, clock: StoreTime) -> Recoverer:
    """Recoverer that no longer waits for workers after its start."""
    recoverer = Recoverer(store, keys, LEASE_TTL, clock=clock)
    for _ in range(3):
        await recoverer.tick()
        clock.advance(LEASE_TTL / 3)
    await recoverer.tick()
    return recoverer


async def claim_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> Claim:
    """Create a task and claim its run."""
    ref = RunRef(await seeds.create_task(), 1)
    claim = await store.run(claim_run(keys, ref, token="t", runner="r", lease_us=LEASE_US, working=True))
    assert isinstance(claim, Claim)
    return claim


async def seconds_left(store: AsyncStore, key: str) -> list[float]:
    """Return the seconds, by the store's clock, until each member of `key` is due."""
    seconds, microseconds = await store.redis.time()
    now = seconds + microseconds / 1_000_000
    return [due / 1_000_000 - now for _, due in await store.redis.zrange(key, 0, -1, withscores=True)]


def jumps(caplog: pytest.LogCaptureFixture) -> list[float]:
    """Return the seconds of the logged jumps."""
    lines = [getattr(record, ABOUT, {}) for record in caplog.records]
    return [line["seconds"] for line in lines if line.get("action") == Action.STORE_CLOCK_JUMPED]


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
async def test_a_jump_takes_no_run_from_a_living_worker(
    store: AsyncStore,
    keys: Keys,
    seeds: Seeds,
    clock: StoreTime,
    recoverer: Recoverer,
    caplog: pytest.LogCaptureFixture,
    offset: float,
) -> None:
    claim = await claim_task(store, keys, seeds)

    clock.jump(offset)
    for _ in range(6):
        await recoverer.tick()  # the first tick notices the jump
        renewal = await store.run(renew_runs(keys, [(claim.ref, claim.token)], lease_us=LEASE_US))
        assert renewal.lost == frozenset()
        clock.advance(LEASE_TTL / 3)

    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
    assert jumps(caplog) == [pytest.approx(offset, abs=5)]


@pytest.mark.parametrize(("offset", "most_leases"), [(HOUR, 1), (-HOUR, MAX_LEASE_FACTOR)])
async def test_after_a_jump_a_lost_run_is_recovered(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: StoreTime, recoverer: Recoverer, offset: float, most_leases: int
) -> None:
    claim = await claim_task(store, keys, seeds)

    async def state_after(seconds: float) -> TaskState:
        for _ in range(round(3 * seconds / LEASE_TTL)):
            await recoverer.tick()
            clock.advance(LEASE_TTL / 3)
        await recoverer.tick()
        return (await seeds.task(claim.ref.task_id)).status.state

    clock.jump(offset)

    assert await state_after(LEASE_TTL * 2 / 3) == WORKING
    assert await state_after(most_leases * LEASE_TTL) == FAILED


async def test_a_lease_from_before_a_jump_backward_is_shortened(
    store: AsyncStore, keys: Keys, seeds: Seeds, wall_clock: MovedClock
) -> None:
    """The watcher has started after the jump, so it does not know the jump."""
    await claim_task(store, keys, seeds)
    wall_clock.set_offset(-HOUR)

    await Recoverer(store, keys, LEASE_TTL).tick()

    assert await seconds_left(store, keys.leases) == [pytest.approx(MAX_LEASE_FACTOR * LEASE_TTL, abs=5)]


@pytest.mark.parametrize(
    "pass_time", [StoreTime.advance, StoreTime.suspend], ids=["the watcher was stopped", "its host was suspended"]
)
async def test_after_a_pause_a_watcher_sees_no_jump_and_lets_workers_renew_their_leases(
    store: AsyncStore,
    keys: Keys,
    seeds: Seeds,
    clock: StoreTime,
    recoverer: Recoverer,
    caplog: pytest.LogCaptureFixture,
    pass_time: Callable[[StoreTime, float], None],
) -> None:
    claim = await claim_task(store, keys, seeds)

    pass_time(clock, HOUR)
    await recoverer.tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
    assert jumps(caplog) == []


async def test_a_slow_response_is_no_jump(
    store: AsyncStore,
    clock: StoreTime,
    recoverer: Recoverer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = store.run

    async def run_slowly(operation: Operation[LapsedRuns]) -> LapsedRuns:
        reply = await run(operation)
        clock.advance(10)
        return reply

    monkeypatch.setattr(store, "run", run_slowly)
    for _ in range(2):
        await recoverer.tick()

    assert jumps(caplog) == []


@pytest.mark.parametrize(("offset", "state"), [(HOUR, FAILED), (-HOUR, INPUT_REQUIRED)])
async def test_other_times_are_due_earlier_or_later(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: StoreTime, offset: float, state: TaskState
) -> None:
    claim = await claim_task(store, keys, seeds)
    timeout_event = TaskStatusUpdateEvent(task_id=claim.ref.task_id, status=TaskStatus(state=FAILED))
    pause = {"events": [status(INPUT_REQUIRED, "well?")], "pause_us": HOUR * 1_000_000, "pause_timeout": timeout_event}
    await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=0, **pause))

    clock.jump(offset)
    await PauseExpirer(store, keys).tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == state
    assert await seconds_left(store, keys.pauses) == [pytest.approx(2 * HOUR, abs=5)] * (state == INPUT_REQUIRED)


async def test_a_run_that_was_published_before_a_jump_backward_is_published_again(
    store: AsyncStore, keys: Keys, clock: StoreTime
) -> None:
    broker = Broker()
    broker.waiting = True  # its queue is long and may contain the run
    watcher = dispatcher(store, keys, broker)
    await store.run(create_operation(keys, "t"))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
    await watcher.tick()
    assert broker.taken == []

    clock.jump(-HOUR)
    await store.redis.zadd(keys.dispatch, {"t.1": 1})
    await watcher.tick()

    assert broker.taken == [("echo", "t", 1)]


async def test_after_a_jump_backward_stopped_watchers_are_not_counted(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock
) -> None:
    for name in ("gone", "here"):
        await store.run(announce_watcher(keys, name, archives=False))

    wall_clock.set_offset(-HOUR)
    await store.run(announce_watcher(keys, "here", archives=False))

    assert await store.run(watchers(keys)) == ["here"]


async def test_after_a_jump_backward_another_watcher_may_archive(
    store: AsyncStore, keys: Keys, wall_clock: MovedClock
) -> None:
    lease_ms = int(LEASE_TTL * 1000)
    await store.run(acquire_archivable(keys, archiver_id="gone", limit=1, lease_ms=lease_ms))

    wall_clock.set_offset(-HOUR)

    due = await store.run(acquire_archivable(keys, archiver_id="here", limit=1, lease_ms=lease_ms))
    assert due.tasks == []
