"""Runs of plain tasks that were published, and that no worker claims.

A worker without this package executes every copy of a message. A copy is therefore published only if all workers of the
queue have this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from a2a_celery.dispatch import Call, Consumer, RunFinder, RunOptions, RunReports
from a2a_celery.lifecycle.outcomes import WORKER_LOST
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, SUBMITTED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.publication import MAX_REDISPATCH_WAIT_US, mark_published, report_prefetched
from a2a_celery.store.tasks.commands import read_task
from a2a_celery.watcher.dispatcher import UNREPORTED_WAITS, Dispatcher
from tests.support.clocks import ManualClock
from tests.support.store.dispatcher_setup import DUE_NOW_US, OWN, STOCK, Broker, ResultsOfWorkers, create_operation

REF = RunRef("t", 1)
REDISPATCH_AFTER = 60
LIMIT_US = UNREPORTED_WAITS * REDISPATCH_AFTER * 1_000_000
REPORTED = RunReports(frozenset({REF.name}), {"celery@stock": STOCK})
STOCK_ONLY = RunReports(workers={"celery@stock": STOCK})
MIXED = RunReports(workers={"celery@stock": STOCK, "celery@own": OWN})
OWN_ONLY = RunReports(workers={"celery@own": OWN})


@dataclass
class Setup:
    """Watcher, and the published run `REF` of a plain task whose queue is empty."""

    store: AsyncStore
    keys: Keys
    celery: Celery
    broker: Broker = field(default_factory=Broker)

    def __post_init__(self) -> None:
        self.results = ResultsOfWorkers(self.store, self.keys, self.celery)
        self.watcher = Dispatcher(self.store, self.keys, self.broker, REDISPATCH_AFTER, self.results)  # type: ignore[arg-type]

    @property
    def record(self) -> str:
        return self.keys.task(REF.task_id).record

    async def create(self, options: RunOptions) -> None:
        await self.store.run(create_operation(self.keys, REF.task_id, options.to_json()))
        await self.store.run(mark_published(self.keys, REF, delay_us=DUE_NOW_US))

    async def tick(self, reports: RunReports | None) -> None:
        """Let the watcher check the run while the workers reply with `reports`."""
        self.results.reports = reports
        await self.store.redis.zadd(self.keys.dispatch, {REF.name: 1}, xx=True)
        await self.watcher.tick()

    async def age(self, field: str, microseconds: int) -> None:
        """Move a time of the record into the past."""
        run, at = (await self.store.redis.hget(self.record, field)).split()
        await self.store.redis.hset(self.record, field, f"{run.decode()} {int(at) - microseconds}")

    async def wait_s(self) -> float:
        """Return the seconds until the run is due again."""
        seconds, _ = await self.store.redis.time()
        return round(await self.store.redis.zscore(self.keys.dispatch, REF.name) / 1_000_000 - seconds)

    async def unreported(self) -> bool:
        return bool(await self.store.redis.hexists(self.record, "unreported_since"))

    async def status(self) -> tuple[int, str]:
        stored_task = await self.store.run(read_task(self.keys, None, REF.task_id))
        assert stored_task is not None
        status = stored_task[0].status
        return status.state, status.message.parts[0].text if status.message.parts else ""


PLAIN = RunOptions(call=Call("tasks.resize", {}))


@pytest.fixture
def celery(tmp_path: Path) -> Celery:
    """App with a result backend."""
    return Celery(backend=f"file://{tmp_path}", set_as_current=False)


@pytest.fixture
async def setup(store: AsyncStore, keys: Keys, celery: Celery) -> Setup:
    setup = Setup(store, keys, celery)
    await setup.create(PLAIN)
    return setup


@pytest.mark.parametrize(
    "reports",
    [REPORTED, STOCK_ONLY, MIXED, RunReports(), None],
    ids=["reported", "stock", "mixed", "no reply", "broker down"],
)
@pytest.mark.parametrize("queue", ["empty", "long"])
async def test_a_run_that_a_stock_worker_may_have_is_not_published_again(
    setup: Setup, reports: RunReports | None, queue: str
) -> None:
    setup.broker.waiting = queue == "long"
    for _ in range(4):
        await setup.tick(reports)
        await setup.age("published_at", 2 * MAX_REDISPATCH_WAIT_US)

    assert setup.broker.taken == []
    assert await setup.status() == (SUBMITTED, "")


@pytest.mark.parametrize(
    "reports",
    [
        OWN_ONLY,
        replace(OWN_ONLY, reported=REPORTED.reported),
        RunReports(workers={"celery@own": OWN, "celery@far": Consumer(frozenset({"far"}), claims=False)}),
    ],
    ids=["alone", "fetched by a busy worker", "beside a stock worker of another queue"],
)
async def test_a_run_is_published_again_if_all_workers_of_its_queue_claim_runs(
    setup: Setup, reports: RunReports
) -> None:
    await setup.tick(reports)

    assert setup.broker.taken == [("echo", "t", 1)]


async def test_a_silent_stock_worker_may_have_the_run(setup: Setup) -> None:
    """A worker of the solo pool does not reply while it executes a task."""
    await setup.tick(RunReports(workers={"celery@own": OWN}, silent={"celery@solo": STOCK}))

    assert setup.broker.taken == []


async def test_a_run_that_no_worker_reports_ends_as_lost(setup: Setup) -> None:
    await setup.tick(STOCK_ONLY)
    await setup.age("unreported_since", LIMIT_US - 10_000_000)
    await setup.tick(STOCK_ONLY)
    assert await setup.status() == (SUBMITTED, "")

    await setup.age("unreported_since", 10_000_000)
    await setup.tick(STOCK_ONLY)

    assert await setup.status() == (FAILED, WORKER_LOST)
    assert (setup.broker.taken, setup.broker.revoked) == ([], [REF.name])
    assert await setup.store.redis.zcard(setup.keys.resubmittable) == 1


async def test_a_report_restarts_the_time_after_which_the_run_is_lost(setup: Setup) -> None:
    await setup.tick(STOCK_ONLY)
    assert await setup.unreported()
    await setup.tick(None)
    assert await setup.unreported(), "the broker was down"

    await setup.tick(REPORTED)

    assert not await setup.unreported()
    assert await setup.wait_s() == pytest.approx(REDISPATCH_AFTER, abs=10)


async def test_a_result_that_was_stored_meanwhile_ends_the_run(setup: Setup) -> None:
    await setup.tick(STOCK_ONLY)
    await setup.age("unreported_since", LIMIT_US)
    find = setup.results.find

    async def find_and_store(names: Any) -> RunReports:
        setup.celery.backend.mark_as_done(REF.name, "done")
        return await find(names)

    setup.results.find = find_and_store  # type: ignore[method-assign]
    await setup.tick(STOCK_ONLY)

    assert (await setup.status())[0] == COMPLETED


@pytest.mark.parametrize("reports", [STOCK_ONLY, RunReports()], ids=["stock worker", "no worker"])
async def test_a_message_that_a_worker_may_have_returned_is_not_lost(setup: Setup, reports: RunReports) -> None:
    """A worker that stops returns its messages to the queue."""
    await setup.tick(reports)
    setup.broker.waiting = True
    await setup.tick(reports)
    if await setup.unreported():
        await setup.age("unreported_since", LIMIT_US)
    await setup.tick(reports)

    assert (setup.broker.taken, await setup.status()) == ([], (SUBMITTED, ""))


@pytest.mark.parametrize("worker", ["celery@stock", "celery@killed"])
async def test_a_started_run_ends_as_lost_at_once_only_if_its_worker_replies(setup: Setup, worker: str) -> None:
    setup.celery.backend.mark_as_started(REF.name, pid=1, hostname=worker)

    await setup.tick(STOCK_ONLY)
    assert ((await setup.status())[0] == FAILED) == (worker == "celery@stock")

    if worker == "celery@killed":
        await setup.age("unreported_since", LIMIT_US)
        await setup.tick(STOCK_ONLY)
    assert await setup.status() == (FAILED, WORKER_LOST)


async def test_a_run_with_progress_is_not_published_again_and_ends_as_lost(setup: Setup) -> None:
    """The result backend does not name the worker of such a run."""
    setup.celery.backend.store_result(REF.name, {"step": 1}, "PROGRESS")

    await setup.tick(OWN_ONLY)
    await setup.age("unreported_since", LIMIT_US)
    await setup.tick(OWN_ONLY)

    assert (setup.broker.taken, await setup.status()) == ([], (FAILED, WORKER_LOST))


async def test_a_run_of_a_lost_worker_with_this_package_waits_for_such_a_worker(setup: Setup) -> None:
    """A Redis broker redelivers the message to any worker after the visibility timeout."""
    await setup.store.run(report_prefetched(setup.keys, [REF], silent_us=DUE_NOW_US, delay_us=60_000_000))
    await setup.tick(MIXED)
    for _ in range(2):
        await setup.age("unreported_since", LIMIT_US)
        await setup.tick(RunReports())
    assert (setup.broker.taken, await setup.status()) == ([], (SUBMITTED, ""))

    setup.broker.waiting = True  # other messages wait in the queue
    await setup.tick(OWN_ONLY)

    assert setup.broker.taken == [("echo", "t", 1)]


async def test_a_retry_that_a_stock_worker_may_have_is_not_published_again(
    store: AsyncStore, keys: Keys, celery: Celery
) -> None:
    setup = Setup(store, keys, celery)
    await setup.create(RunOptions(call=Call("tasks.resize", {}), retries=1))
    setup.celery.backend.mark_as_retry(REF.name, ValueError())  # by the first attempt

    await setup.tick(STOCK_ONLY)
    assert (setup.broker.taken, await setup.unreported()) == ([], True)

    await setup.tick(OWN_ONLY)
    assert setup.broker.taken == [("echo", "t", 1)]


@pytest.mark.parametrize("backend", ["rpc://", "disabled://"])
async def test_a_run_whose_result_cannot_be_read_ends_as_lost(store: AsyncStore, keys: Keys, backend: str) -> None:
    setup = Setup(store, keys, Celery(backend=backend, broker="memory://", set_as_current=False))
    await setup.create(PLAIN)

    await setup.tick(REPORTED)
    await setup.tick(STOCK_ONLY)
    await setup.age("unreported_since", LIMIT_US)
    await setup.tick(STOCK_ONLY)

    assert (setup.broker.taken, await setup.status()) == ([], (FAILED, WORKER_LOST))


async def test_no_run_is_lost_because_the_result_backend_is_down(setup: Setup) -> None:
    def get_task_meta(name: str, **_: Any) -> Any:
        raise OSError("down")

    setup.celery.conf.result_backend_thread_safe = True
    setup.celery.backend.get_task_meta = get_task_meta

    await setup.tick(STOCK_ONLY)
    await setup.age("unreported_since", LIMIT_US)
    await setup.tick(STOCK_ONLY)

    assert (setup.broker.taken, await setup.status()) == ([], (SUBMITTED, ""))


async def test_a_polled_result_is_read_at_growing_intervals(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    setup = Setup(store, keys, celery)
    await setup.create(RunOptions(call=Call("tasks.resize", {}, polled=True)))

    waits = []
    for seconds in (0, 2, 8, 500):
        await setup.age("published_at", seconds * 1_000_000)
        await setup.tick(REPORTED)
        waits.append(await setup.wait_s())

    assert waits == [*sorted(waits[:3]), pytest.approx(REDISPATCH_AFTER, abs=10)]
    assert waits[2] < REDISPATCH_AFTER / 2
    assert setup.broker.taken == []


async def test_a_polled_run_is_not_published_again_before_its_time(
    store: AsyncStore, keys: Keys, celery: Celery
) -> None:
    setup = Setup(store, keys, celery)
    await setup.create(RunOptions(call=Call("tasks.resize", {}, polled=True)))

    await setup.tick(OWN_ONLY)
    assert setup.broker.taken == []
    await setup.age("published_at", REDISPATCH_AFTER * 1_000_000)
    await setup.tick(OWN_ONLY)

    assert setup.broker.taken == [("echo", "t", 1)]


class Node:
    """Simulated worker."""

    def __init__(self, runs: list[str], queues: list[str], tasks: list[str]) -> None:
        self.replies = {
            "query_task": {name: ["active", {}] for name in runs},
            "active_queues": [{"name": name} for name in queues],
            "registered": tasks,
        }


class Inspector:
    """Simulated remote control of a Celery app. The nodes in `nodes` reply, up to the limit of a query."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.queries: list[str] = []
        self.control = self

    def connection_for_write(self, **_: Any) -> Any:
        return Celery(broker="memory://", set_as_current=False).connection_for_write()

    def inspect(
        self, destination: Any = None, timeout: Any = None, *, connection: Any, limit: int | None = None
    ) -> Any:
        names = list(self.nodes if destination is None else destination)[:limit]

        def query(command: str) -> Callable[..., Any]:
            def reply(*_: str) -> dict[str, Any]:
                self.queries.append(command)
                return {name: self.nodes[name].replies[command] for name in names if name in self.nodes}

            return reply

        class Inspect:
            query_task, active_queues, registered = map(query, ("query_task", "active_queues", "registered"))

        return Inspect


def test_workers_are_distinguished_by_their_tasks() -> None:
    nodes = {
        "a": Node(["t.1"], ["celery"], ["a2a.submit_scheduled", "resize"]),
        "b": Node([], ["celery", "far"], ["resize"]),
    }
    finder = RunFinder(Inspector(nodes))  # type: ignore[arg-type]

    reports = finder.find(["t.1", "u.1"])

    stock = Consumer(frozenset({"celery", "far"}), claims=False)
    assert reports == RunReports(frozenset({"t.1"}), {"a": OWN, "b": stock})


def test_a_stock_worker_is_remembered_for_ten_minutes() -> None:
    clock, nodes = ManualClock(), {"a": Node(["t.1"], ["celery"], ["a2a.submit_scheduled"]), "b": Node([], ["far"], [])}
    finder = RunFinder(Inspector(nodes), clock)  # type: ignore[arg-type]
    finder.find(["t.1"])
    solo = nodes.pop("b")

    clock.advance(590)
    assert finder.find(["t.1"]).silent == {"b": Consumer(frozenset({"far"}), claims=False)}
    clock.advance(20)
    assert finder.find(["t.1"]).silent == {}
    nodes["b"] = solo
    assert finder.find(["u.1"]).workers.keys() == {"a", "b"}


def test_a_search_waits_for_new_workers_only_if_a_run_is_not_reported() -> None:
    nodes = {"a": Node(["t.1"], ["celery"], [])}
    inspector = Inspector(nodes)
    finder = RunFinder(inspector)  # type: ignore[arg-type]
    finder.find(["t.1"])
    nodes["b"] = Node(["u.1"], ["celery"], [])
    inspector.queries.clear()

    assert finder.find(["t.1"]).workers.keys() == {"a"}
    assert inspector.queries.count("query_task") == 1
    assert finder.find(["t.1", "u.1"]).reported == {"t.1", "u.1"}


def test_a_search_waits_for_new_workers_if_all_other_workers_have_this_package() -> None:
    nodes = {"a": Node(["t.1"], ["celery"], ["a2a.submit_scheduled"])}
    finder = RunFinder(Inspector(nodes))  # type: ignore[arg-type]
    assert finder.find(["t.1"]).are_claimed("celery")
    nodes["b"] = Node([], ["celery"], [])

    assert not finder.find(["t.1"]).are_claimed("celery")
