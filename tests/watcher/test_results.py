"""Results of runs in workers without a2a_celery. The watcher writes one event for each state."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import NotRegistered

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import RUN_HEADER, Call, RunOptions
from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.commands import claim_run
from a2a_celery.store.tasks.commands import read_task
from a2a_celery.watcher.plain_tasks.result_listener import ResultListener
from a2a_celery.watcher.plain_tasks.results import Progress, Results
from tests.support.processes.proxy import proxy
from tests.support.store.dispatcher_setup import create_operation
from tests.support.waiting import eventually_async

# Celery calls the deprecated function
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

REF = RunRef("t", 1)
PLAIN = RunOptions(call=Call("tasks.resize", {}))


@pytest.fixture
def celery(redis_server: EmbeddedRedis) -> Celery:
    """App of a worker without a2a_celery, with a Redis result backend."""
    return Celery(backend=redis_server.broker_url, set_as_current=False)


@pytest.fixture
async def results(store: AsyncStore, keys: Keys, celery: Celery) -> Results:
    """`Results` of a watcher. The run `REF` waits for a worker."""
    await store.run(create_operation(keys, "t", PLAIN.to_json()))
    return Results(store, keys, celery)


async def events(store: AsyncStore, keys: Keys) -> list[Any]:
    """Return the state and metadata of each status after SUBMITTED, and "artifact" for an artifact."""
    page = await store.run(read_log(keys, "t", 1))
    return [
        "artifact"
        if isinstance(entry.event, TaskArtifactUpdateEvent)
        else (entry.event.status.state, dict(entry.event.metadata))
        for entry in page.entries
        if isinstance(entry.event, TaskArtifactUpdateEvent | TaskStatusUpdateEvent)
    ]


async def test_several_watchers_write_each_state_once(
    store: AsyncStore, keys: Keys, celery: Celery, results: Results
) -> None:
    backend, watchers = celery.backend, (results, Results(store, keys, celery))

    async def look() -> None:
        for watcher in (*watchers, *watchers):
            await watcher.observe(REF)

    await look()
    steps: list[Callable[[], Any]] = [
        lambda: backend.mark_as_started("t.1", pid=1, hostname="celery@stock"),
        lambda: backend.store_result("t.1", {"step": 1}, "PROGRESS"),
        lambda: backend.store_result("t.1", {"step": 2}, "PROGRESS"),
        lambda: backend.store_result("t.1", {"step": 1}, "PROGRESS"),
        lambda: backend.mark_as_retry("t.1", ValueError("a secret")),
        lambda: backend.mark_as_started("t.1", pid=1, hostname="celery@stock"),
        lambda: backend.mark_as_retry("t.1", ValueError("a secret")),
        lambda: backend.mark_as_done("t.1", "done"),
    ]
    for store_state in steps:
        store_state()
        await look()

    assert await events(store, keys) == [
        (WORKING, {}),
        *((WORKING, {"step": step, **own_metadata({CELERY_STATE: "PROGRESS"})}) for step in (1, 2, 1)),
        (WORKING, own_metadata({ATTEMPT: 2})),
        (WORKING, {}),
        (WORKING, own_metadata({ATTEMPT: 3})),
        "artifact",
        (COMPLETED, {}),
    ]


async def test_retries_that_the_result_backend_counts_are_not_counted_again(
    store: AsyncStore, keys: Keys, celery: Celery, results: Results
) -> None:
    celery.conf.result_extended = True
    celery.backend.mark_as_retry("t.1", ValueError(), request=Context(retries=3, id="t.1"))

    await results.observe(REF)

    assert await events(store, keys) == [(WORKING, own_metadata({ATTEMPT: 5}))]


async def test_a_state_older_than_the_written_one_is_dropped(
    store: AsyncStore, keys: Keys, celery: Celery, results: Results
) -> None:
    """A watcher with an older read of the result backend may write after a watcher with a newer read."""
    loop, stale = asyncio.get_running_loop(), {"status": "PROGRESS", "result": {"step": 1}}

    class SlowBackend:
        backend: Any

        def get_task_meta(self, name: str) -> Any:
            if stale:
                celery.backend.store_result(name, {"step": 2}, "PROGRESS")
                asyncio.run_coroutine_threadsafe(results.observe(REF), loop).result(30)
                meta = dict(stale)
                stale.clear()
                return meta
            return celery.backend.get_task_meta(name)

    slow_app = SlowBackend()
    slow_app.backend = slow_app
    assert await Results(store, keys, slow_app).observe(REF)

    assert [metadata["step"] for _, metadata in await events(store, keys)] == [2]


@pytest.mark.parametrize("meta", [b"raw", {"deep": float("nan")}], ids=["bytes", "nan"])
async def test_a_state_whose_metadata_is_no_json_is_shown_without_it(
    store: AsyncStore, keys: Keys, results: Results, celery: Celery, meta: Any
) -> None:
    celery.backend.store_result("t.1", meta, "PROGRESS")

    await results.observe(REF)

    assert await events(store, keys) == [(WORKING, own_metadata({CELERY_STATE: "PROGRESS"}))]


async def test_a_revoked_run_is_canceled(store: AsyncStore, keys: Keys, results: Results, celery: Celery) -> None:
    celery.backend.mark_as_revoked("t.1", "revoked")

    assert not await results.observe(REF)

    stored_task = await store.run(read_task(keys, None, "t"))
    assert stored_task is not None
    assert stored_task[0].status.state == CANCELED
    assert stored_task[0].status.message.parts[0].text == CANCELED_BY_OPERATOR


async def _claim(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    await store.run(create_operation(keys, "t", PLAIN.to_json()))
    claim = claim_run(keys, REF, token="t", runner="r", lease_us=10_000_000, working=False)
    await store.run(claim)
    celery.backend.mark_as_started("t.1", pid=1, hostname="celery@ours")


async def _announce(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    """Let a worker with a2a_celery store STARTED before it claims the run."""
    await store.run(create_operation(keys, "t", PLAIN.to_json()))
    celery.backend.mark_as_started("t.1", pid=1, hostname="celery@ours", **{RUN_HEADER: True})


async def _agents(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    await store.run(create_operation(keys, "t"))
    celery.backend.mark_as_started("t.1", pid=1, hostname="celery@ours")


async def _outdated_run(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    await store.run(create_operation(keys, "t", PLAIN.to_json()))
    celery.backend.mark_as_started("t.0", pid=1, hostname="celery@stock")


async def _unknown(store: AsyncStore, keys: Keys, celery: Celery) -> None:
    """Store the failure that a worker with a2a_celery stores for a task that it does not know."""
    await store.run(create_operation(keys, "t", PLAIN.to_json()))
    celery.backend.mark_as_failure("t.1", NotRegistered("tasks.resize"))


@pytest.mark.parametrize("seed", [_claim, _announce, _agents, _outdated_run, _unknown], ids=lambda f: f.__name__[1:])
async def test_what_a_worker_without_this_package_did_not_say_changes_nothing(
    store: AsyncStore, keys: Keys, celery: Celery, seed: Callable[..., Any]
) -> None:
    await seed(store, keys, celery)

    for ref in (REF, RunRef("t", 0), RunRef("none", 1)):
        assert not await Results(store, keys, celery).observe(ref)

    stored_task = await store.run(read_task(keys, None, "t"))
    assert stored_task is not None
    assert stored_task[0].status.state == SUBMITTED


async def test_a_result_that_does_not_apply_ends_nothing(
    store: AsyncStore, keys: Keys, results: Results, celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    await store.run(claim_run(keys, REF, token="t", runner="r", lease_us=10_000_000, working=False))
    celery.backend.mark_as_done("t.1", "done")

    with caplog.at_level(logging.INFO):
        assert (await results.reconcile(REF)).progress is Progress.UNKNOWN

    assert "run t.1: its result does not apply" in caplog.text
    assert await events(store, keys) == []


async def test_a_result_ends_the_run_of_a_lost_notification(
    store: AsyncStore, keys: Keys, results: Results, celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    celery.backend.mark_as_done("t.1", "done")

    with caplog.at_level(logging.INFO):
        assert (await results.reconcile(REF)).progress is Progress.ENDED
        assert (await results.reconcile(REF)).progress is Progress.ENDED

    assert "run t.1 ended by its result" in caplog.text
    assert await events(store, keys) == ["artifact", (COMPLETED, {})]


class Checks:
    """Stand-in for `Results` that records the checked runs, all of which are open."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fails = 0

    async def observe(self, ref: RunRef) -> bool:
        self.names.append(ref.name)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the result backend is unavailable")
        return True


@asynccontextmanager
async def listening(celery: Celery, checks: Checks) -> AsyncIterator[ResultListener]:
    """Run a result listener, and wait until it has subscribed."""
    listener = ResultListener(checks, celery, reconnect_interval=0.05)  # type: ignore[arg-type]
    resubscribe, has_subscribed = listener.resubscribed, asyncio.Event()
    listener.resubscribed = lambda: (has_subscribed.set(), resubscribe())  # type: ignore[assignment, func-returns-value]
    listener.start()
    try:
        async with asyncio.timeout(60):
            await has_subscribed.wait()
        yield listener
    finally:
        await listener.stop()


async def wait_for_checks(checks: Checks, *names: str) -> None:
    """Wait until the newest checks are those of `names`."""

    async def condition() -> bool:
        return checks.names[-len(names) :] == list(names)

    await eventually_async(condition, what=f"checks at {names}, got {checks.names}")


@pytest.mark.parametrize("prefix", ["", "acme-results:", "odd[a]*?\\"])
async def test_only_results_of_runs_are_checked(store: AsyncStore, celery: Celery, prefix: str) -> None:
    checks = Checks()
    celery.conf.result_backend_transport_options = {"global_keyprefix": prefix}
    async with listening(celery, checks):
        for name in ("0f9d1fd5-6d49-4a2f-8f3c-5c5b8f6f6f6f", "odd.name", "a", "t.1"):
            celery.backend.store_result(name, None, states.STARTED)
        await wait_for_checks(checks, "t.1")
        celery.backend.mark_as_done("t.1", "done")
        await wait_for_checks(checks, "t.1", "t.1")

    assert checks.names == ["t.1", "t.1"]


async def test_a_broken_subscription_is_renewed(store: AsyncStore, celery: Celery) -> None:
    """The listener misses results that are stored during the interruption, so it checks open runs again."""
    checks = Checks()
    async with listening(celery, checks):
        celery.backend.store_result("t.1", None, states.STARTED)
        await wait_for_checks(checks, "t.1")

        await store.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]

        await wait_for_checks(checks, "t.1", "t.1")
        celery.backend.store_result("u.1", None, states.STARTED)
        await wait_for_checks(checks, "u.1")


async def test_an_outage_of_the_result_backend_does_not_stop_the_listener(
    store: AsyncStore, redis_server: EmbeddedRedis
) -> None:
    direct, checks = Celery(backend=redis_server.broker_url, set_as_current=False), Checks()
    with proxy(redis_server.store_url.removeprefix("unix://")) as line:
        celery = Celery(backend=f"redis://127.0.0.1:{line.port}/0", set_as_current=False)
        async with listening(celery, checks):
            direct.backend.store_result("t.1", None, states.STARTED)
            await wait_for_checks(checks, "t.1")

            line.cut()
            direct.backend.store_result("t.1", None, states.SUCCESS)
            line.restore()

            await wait_for_checks(checks, "t.1", "t.1")
            direct.backend.store_result("u.1", None, states.STARTED)
            await wait_for_checks(checks, "u.1")


async def test_a_run_is_checked_again_after_an_error_of_the_result_backend(store: AsyncStore, celery: Celery) -> None:
    checks = Checks()
    checks.fails = 1
    async with listening(celery, checks):
        celery.backend.store_result("t.1", None, states.STARTED)

        await wait_for_checks(checks, "t.1", "t.1")


@pytest.mark.parametrize(("backend", "lines"), [(None, 0), ("cache+memory://", 1)])
async def test_only_results_of_a_backend_are_said_to_be_polled(
    caplog: pytest.LogCaptureFixture, backend: str | None, lines: int
) -> None:
    async def has_ended() -> bool:
        return all(thread.name != "a2a-result-listener" for thread in threading.enumerate())

    caplog.set_level(logging.INFO)
    listener = ResultListener(Checks(), Celery(backend=backend, set_as_current=False))  # type: ignore[arg-type]

    listener.start()
    await eventually_async(has_ended, what="the thread of the listener ends")
    await listener.stop()

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["results are polled"] * lines
