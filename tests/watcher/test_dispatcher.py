"""Dispatcher of a watcher. It publishes each unclaimed run once per interval, even after an outage of the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery

from a2a_celery.dispatch import Call, RunOptions, RunReports
from a2a_celery.dispatch.options import LONGEST_ETA
from a2a_celery.errors import StoreUnavailable
from a2a_celery.lifecycle.outcomes import NOT_BEGUN_IN_TIME, NOT_PUBLISHED, WORKER_LOST
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import FAILED, REJECTED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import claim_run, end_run
from a2a_celery.store.runs.publication import mark_published, report_prefetched
from a2a_celery.store.tasks.commands import read_task
from a2a_celery.watcher.dispatcher import BROKER_RETRY_US, MAX_FAILED_PUBLICATIONS, RESULTS_TIMEOUT, Dispatcher
from a2a_celery.watcher.metrics import WatcherMetrics
from a2a_celery.watcher.plain_tasks.results import Observation, Results
from a2a_celery.watcher.role_loop import MIN_TICK_INTERVAL, RoleLoop
from tests.support.clocks import ManualClock
from tests.support.store.dispatcher_setup import DUE_NOW_US, OWN, Broker, ResultsOfWorkers, create_operation, dispatcher
from tests.support.store.seeds import status


async def test_due_runs_are_published_once(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    watchers = [dispatcher(store, keys, broker) for _ in range(4)]

    await asyncio.gather(*(watcher.tick() for watcher in watchers))
    await asyncio.gather(*(watcher.tick() for watcher in watchers))

    assert sorted(broker.taken) == [("echo", task_id, 1) for task_id in due]


async def test_a_claimed_run_is_not_published_again(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    await store.run(claim_run(keys, RunRef("t1", 1), token="t", runner="r", lease_us=10_000_000, working=True))

    await dispatcher(store, keys, broker).tick()

    assert sorted(task_id for _, task_id, _ in broker.taken) == ["t0", "t2"]


async def test_an_outage_of_the_broker_loses_nothing(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    watcher = dispatcher(store, keys, broker, redispatch_after=3600)
    broker.down = True
    await watcher.tick()
    broker.down = False
    await watcher.tick()
    assert broker.taken == [], "it is left alone for a while"

    for task_id in due:
        await store.redis.zincrby(keys.dispatch, -BROKER_RETRY_US, f"{task_id}.1")
    await watcher.tick()
    assert len(broker.taken) == len(due)


@pytest.mark.parametrize("outages", [0, 2])
async def test_a_run_of_a_lost_worker_counts_as_published_again_also_after_an_outage(
    store: AsyncStore, keys: Keys, outages: int
) -> None:
    broker, metrics, ref = Broker(), WatcherMetrics(), RunRef("t", 1)
    watcher = dispatcher(store, keys, broker, metrics=metrics)
    broker.waiting = True  # a worker had fetched the run, so the queue does not contain it
    await store.run(create_operation(keys, "t"))
    await store.run(mark_published(keys, ref, delay_us=60_000_000))
    await store.run(report_prefetched(keys, [ref], silent_us=DUE_NOW_US, delay_us=60_000_000))

    for is_down in (*[True] * outages, False):
        broker.down = is_down
        await watcher.tick()
        await store.redis.zadd(keys.dispatch, {ref.name: 1})

    assert broker.taken == [("echo", "t", 1)]
    assert metrics.registry.get_sample_value("a2a_watcher_runs_dispatched_again_total") == 1


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped watcher", "failing store"])
async def test_runs_that_a_watcher_did_not_reach_were_not_published(
    store: AsyncStore, keys: Keys, due: list[str], is_stopped: bool
) -> None:
    class HangingBroker(Broker):
        async def publish_async(self, agent: str, ref: RunRef, options: RunOptions) -> None:
            if self.taken and not is_stopped:
                raise StoreUnavailable("down")
            while self.taken:
                hangs.set()
                await asyncio.sleep(3600)
            await super().publish_async(agent, ref, options)

    broker, hangs = HangingBroker(), asyncio.Event()
    tick = asyncio.create_task(dispatcher(store, keys, broker).tick())
    if is_stopped:
        await hangs.wait()
        tick.cancel()
    await asyncio.gather(tick, return_exceptions=True)

    counts = {task_id: await store.redis.hget(keys.task(task_id).record, "republish_count") for task_id in due}
    [(_, published_id, _)] = broker.taken
    assert counts == dict.fromkeys(due, b"0") | {published_id: b"1"}


async def test_a_watcher_that_stops_during_an_acquisition_leaves_the_runs_to_others(
    store: AsyncStore, keys: Keys, due: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, run, is_acquired, may_reply = Broker(), store.run, asyncio.Event(), asyncio.Event()

    async def with_a_late_reply(operation: Operation[Any]) -> Any:
        reply = await run(operation)
        if operation.script.name == "acquire_due_runs":
            is_acquired.set()
            await may_reply.wait()
        return reply

    monkeypatch.setattr(store, "run", with_a_late_reply)
    tick = asyncio.create_task(dispatcher(store, keys, broker).tick())
    await is_acquired.wait()
    tick.cancel()
    asyncio.get_running_loop().call_soon(may_reply.set)
    await asyncio.wait({tick})
    assert broker.taken == []

    await dispatcher(store, keys, broker).tick()
    assert broker.taken == [("echo", task_id, 1) for task_id in due]


async def test_a_run_that_the_broker_refuses_delays_no_other(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    broker.refuses = {due[0]}

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == [("echo", task_id, 1) for task_id in due[1:]]
    assert await store.redis.hget(keys.task(due[0]).record, "republish_count") == b"0"
    assert await store.redis.zscore(keys.dispatch, f"{due[0]}.1") is not None


async def publish_repeatedly(dispatcher: Dispatcher, store: AsyncStore, keys: Keys, count: int) -> list[float]:
    """Publish the due runs `count` times, and return the delays after which the run odd.1 is due again, in seconds."""
    delays = []
    for _ in range(count):
        (seconds, microseconds) = await store.redis.time()
        await store.redis.zadd(keys.dispatch, {"odd.1": 0}, xx=True)
        await dispatcher.tick()
        due_us = await store.redis.zscore(keys.dispatch, "odd.1")
        delays += [] if due_us is None else [round((due_us - seconds * 1e6 - microseconds) / 1e6)]
    return delays


async def test_a_run_whose_publication_raises_an_exception_of_the_app_fails_after_a_few_attempts(
    store: AsyncStore, keys: Keys, due: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    broker.raises = {"odd"}
    await store.run(create_operation(keys, "odd"))

    delays = await publish_repeatedly(dispatcher(store, keys, broker), store, keys, MAX_FAILED_PUBLICATIONS)

    assert delays == [2, 4, 8, 16, 32]
    assert broker.taken == [("echo", task_id, 1) for task_id in due]
    (task, _) = await store.run(read_task(keys, None, "odd"))
    text = task.status.message.parts[0].text
    assert (task.status.state, text) == (FAILED, NOT_PUBLISHED)
    assert "AlreadyQueued()" in caplog.text


async def test_a_published_run_that_cannot_be_published_again_waits(store: AsyncStore, keys: Keys) -> None:
    """Its message may be in the queue, and may hold the lock for which the app raises an exception."""
    broker = Broker()
    broker.raises = {"odd"}
    await store.run(create_operation(keys, "odd"))
    await store.run(mark_published(keys, RunRef("odd", 1), delay_us=DUE_NOW_US))

    delays = await publish_repeatedly(dispatcher(store, keys, broker), store, keys, MAX_FAILED_PUBLICATIONS + 1)

    assert delays == [60] * (MAX_FAILED_PUBLICATIONS + 1)
    (task, _) = await store.run(read_task(keys, None, "odd"))
    assert task.status.state == SUBMITTED


@pytest.mark.parametrize("options", [b"no options", b'{"not_after_us":253402300799000000}'])
async def test_a_run_whose_options_cannot_be_used_delays_no_other(
    store: AsyncStore, keys: Keys, options: bytes
) -> None:
    broker = Broker()
    for task_id, content in (("odd", options), ("sound", b"")):
        await store.run(create_operation(keys, task_id, content))
        await store.run(mark_published(keys, RunRef(task_id, 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == [("echo", "sound", 1)]
    assert await store.redis.zscore(keys.dispatch, "odd.1") is not None


async def test_a_run_that_stays_unclaimed_is_published_less_and_less_often(
    store: AsyncStore, keys: Keys, due: list[str]
) -> None:
    waits = []
    for _ in range(3):
        broker = Broker()
        await dispatcher(store, keys, broker, redispatch_after=1000).tick()
        seconds, micros = await store.redis.time()
        score = await store.redis.zscore(keys.dispatch, "t0.1")
        waits.append(round((score - (seconds * 1_000_000 + micros)) / 1_000_000_000))
        for task_id in due:
            await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 0})

    assert waits == [1, 2, 4]


async def test_a_tick_that_fails_does_not_end_the_loop() -> None:
    class ShakyRole:
        name = "shaky"
        every = 10.0
        ticks = 0

        async def tick(self) -> None:
            self.ticks += 1
            if self.ticks < 3:
                raise RuntimeError("not yet")

    role, clock = ShakyRole(), ManualClock()
    loop = RoleLoop(role, clock=clock)
    loop.start()
    for ticks in range(1, 6):
        await clock.until_waiting(MIN_TICK_INTERVAL)
        assert role.ticks == ticks
        clock.advance(MIN_TICK_INTERVAL)
        await clock.until_waiting(role.every - MIN_TICK_INTERVAL)
        clock.advance(role.every - MIN_TICK_INTERVAL)
    await loop.stop()


async def test_a_run_is_published_with_the_options_it_was_stored_with(store: AsyncStore, keys: Keys) -> None:
    broker, options = Broker(), b'{"celery":{"queue":"far"}}'
    await store.run(create_operation(keys, "t", options))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker).tick()

    assert broker.options == {"t": RunOptions({"queue": "far"})}


async def test_a_run_with_a_later_start_time_is_published_shortly_before_it(store: AsyncStore, keys: Keys) -> None:
    broker = Broker()
    watcher = dispatcher(store, keys, broker)
    not_before = datetime.now(UTC) + timedelta(hours=1)
    await store.run(create_operation(keys, "t", RunOptions(not_before=not_before).to_json()))
    await store.run(create_operation(keys, "soon", RunOptions(not_before=not_before - timedelta(minutes=51)).to_json()))
    for _ in range(3):  # also if a watcher scans too early
        await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
        await watcher.tick()

    assert broker.taken == []
    due = datetime.fromtimestamp(await store.redis.zscore(keys.dispatch, "t.1") / 1_000_000, UTC)
    assert abs(not_before - LONGEST_ETA - due) < timedelta(seconds=5)
    assert await store.redis.hget(keys.task("t").record, "republish_count") == b"0"

    await store.run(mark_published(keys, RunRef("soon", 1), delay_us=DUE_NOW_US))
    await watcher.tick()
    assert broker.taken == [("echo", "soon", 1)]


async def test_the_store_s_clock_decides_when_a_run_may_start(store: AsyncStore, keys: Keys) -> None:
    broker, not_before = Broker(), datetime.now(UTC) + timedelta(seconds=-1)
    options = RunOptions({"queue": "gpu"}, not_before=not_before)
    await store.run(create_operation(keys, "t", options.to_json()))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker, clock=ManualClock(time.time() - 86_400)).tick()

    assert broker.options == {"t": RunOptions({"queue": "gpu"})}


@pytest.mark.parametrize(("expires_in", "offset"), [(3600, 86_400), (-60, -3600)])
async def test_a_run_that_has_expired_by_one_clock_only_is_published(
    store: AsyncStore, keys: Keys, expires_in: float, offset: float
) -> None:
    """Either the watcher's clock or the store's clock is wrong."""
    broker, not_after = Broker(), datetime.now(UTC) + timedelta(seconds=expires_in)
    await store.run(create_operation(keys, "t", RunOptions(not_after=not_after).to_json()))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))

    await dispatcher(store, keys, broker, clock=ManualClock(time.time() + offset)).tick()

    assert broker.taken == [("echo", "t", 1)]


async def test_a_run_that_has_expired_is_rejected_and_not_published(store: AsyncStore, keys: Keys) -> None:
    broker = Broker()
    await store.run(create_operation(keys, "late", b'{"not_after_us":1}'))
    await store.run(create_operation(keys, "begun", b'{"not_after_us":1}'))
    for task_id in ("late", "begun"):
        await store.run(mark_published(keys, RunRef(task_id, 1), delay_us=DUE_NOW_US))
    await store.run(claim_run(keys, RunRef("begun", 1), token="t", runner="r", lease_us=10_000_000, working=True))

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == []
    late_task, started_task = [(await store.run(read_task(keys, None, task_id)))[0] for task_id in ("late", "begun")]
    assert late_task.status.state == REJECTED
    assert late_task.status.message.parts[0].text == NOT_BEGUN_IN_TIME
    assert started_task.status.state == WORKING


PLAIN = RunOptions(call=Call("tasks.resize", {})).to_json()


async def plain_run(
    store: AsyncStore, keys: Keys, celery: Celery, error: Exception, *, is_recorded: bool
) -> tuple[Dispatcher, Broker]:
    """Create a due run of a plain task with the result `error`, and return its dispatcher and the broker."""
    await store.run(create_operation(keys, "t", PLAIN))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
    if is_recorded:
        failure = status(FAILED, WORKER_LOST)
        await store.run(end_run(keys, RunRef("t", 1), runner="here.1.", event=failure, lost=True))
    celery.backend.mark_as_failure("t.1", error)
    results = ResultsOfWorkers(store, keys, celery)
    results.reports = RunReports(workers={"celery@own": OWN})
    broker = Broker()
    return Dispatcher(store, keys, broker, 60, results), broker  # type: ignore[arg-type]


@pytest.fixture
def celery() -> Celery:
    """App with a result backend."""
    return Celery(backend="cache+memory://", set_as_current=False)


@pytest.mark.parametrize(
    ("error", "is_recorded"), [(StoreUnavailable("away"), False), (WorkerLostError("killed"), True)]
)
async def test_a_run_that_an_a2a_worker_could_not_start_is_published_again(
    store: AsyncStore, keys: Keys, celery: Celery, error: Exception, is_recorded: bool
) -> None:
    """Celery stores a failure for a run that could not start, but this failure must not complete the task."""
    watcher, broker = await plain_run(store, keys, celery, error, is_recorded=is_recorded)

    await watcher.tick()

    assert broker.taken == [("echo", "t", 1)]
    stored_task = await store.run(read_task(keys, None, "t"))
    assert stored_task is not None
    assert stored_task[0].status.state == SUBMITTED


async def test_losing_a_worker_without_this_package_ends_the_task(
    store: AsyncStore, keys: Keys, celery: Celery
) -> None:
    watcher, broker = await plain_run(store, keys, celery, WorkerLostError("killed"), is_recorded=False)

    await watcher.tick()

    assert broker.taken == []
    stored_task = await store.run(read_task(keys, None, "t"))
    assert stored_task is not None
    assert stored_task[0].status.state == FAILED


async def test_a_run_of_a_worker_without_this_package_is_checked_at_equal_intervals(
    store: AsyncStore, keys: Keys, celery: Celery
) -> None:
    """Only these checks may detect the end of the run, so the interval between them does not double."""
    await store.run(create_operation(keys, "t", PLAIN))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
    celery.backend.mark_as_retry("t.1", ValueError())
    watcher = Dispatcher(store, keys, Broker(), 60, Results(store, keys, celery))  # type: ignore[arg-type]

    waits = []
    for _ in range(3):
        start = await store_time(store)
        await watcher.tick()
        due = await store.redis.zscore(keys.dispatch, "t.1")
        waits.append(int((due - start) // 30_000_000))
        await store.redis.zadd(keys.dispatch, {"t.1": 1})

    assert waits == [2, 2, 2]  # in half minutes


async def store_time(store: AsyncStore) -> int:
    """Return the time of the store's clock in microseconds."""
    seconds, microseconds = await store.redis.time()
    return int(seconds) * 1_000_000 + int(microseconds)


async def test_a_started_run_is_not_published_again_during_an_outage_of_the_broker(
    store: AsyncStore, keys: Keys, tmp_path: Path
) -> None:
    """The watcher cannot ask the worker for its runs, and a second message would execute the run twice."""
    celery = Celery(broker="redis://127.0.0.1:1/0", backend=f"file://{tmp_path}", set_as_current=False)
    await store.run(create_operation(keys, "t", PLAIN))
    await store.run(mark_published(keys, RunRef("t", 1), delay_us=DUE_NOW_US))
    celery.backend.mark_as_started("t.1", hostname="celery@elsewhere", pid=1)
    broker = Broker()

    await Dispatcher(store, keys, broker, 60, Results(store, keys, celery)).tick()  # type: ignore[arg-type]

    assert broker.taken == []
    stored_task = await store.run(read_task(keys, None, "t"))
    assert stored_task is not None
    assert stored_task[0].status.state == WORKING


@pytest.mark.parametrize("down", ["hangs", "fails"])
async def test_a_silent_result_backend_is_called_once_per_tick(store: AsyncStore, keys: Keys, down: str) -> None:
    """The other due runs must not wait for the silent backend as well."""
    clock = ManualClock()
    run_names: list[str] = []

    class SilentBackend:
        async def find(self, names: Collection[str]) -> RunReports:
            return RunReports(workers={"celery@own": OWN})

        async def reconcile(self, ref: RunRef, *, is_retry: bool = False) -> Observation:
            run_names.append(ref.name)
            if down == "hangs":
                clock.advance(RESULTS_TIMEOUT)
                await asyncio.get_running_loop().create_future()
            raise ConnectionError("down")

    for n in range(5):
        await store.run(create_operation(keys, f"t{n}", PLAIN))
        await store.run(mark_published(keys, RunRef(f"t{n}", 1), delay_us=DUE_NOW_US))
    broker = Broker()

    async with asyncio.timeout(30):
        await Dispatcher(store, keys, broker, 60, SilentBackend(), clock=clock).tick()  # type: ignore[arg-type]

    assert len(broker.taken) == 5
    assert len(run_names) == 1
