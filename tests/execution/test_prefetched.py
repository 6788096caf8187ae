"""Reports of prefetched runs to the store. New runs are reported immediately, and known runs at an interval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery.worker import state

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.celery.request import unfinished_requests
from a2a_celery.execution.process.prefetched import PrefetchReporter, fetched_runs
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys, Operation, SyncStore
from tests.support.clocks import ManualClock
from tests.support.store.seeds import Seeds


class FakeRequest:
    """Stand-in for the request of a message that a worker has received."""

    name = "a2a.echo"

    def __init__(self, name: str) -> None:
        self.id = name


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reporter(redis_server: EmbeddedRedis, keys: Keys, clock: ManualClock) -> PrefetchReporter:
    return PrefetchReporter(Settings(store_url=redis_server.store_url, key_prefix=keys.prefix, lease_ttl=30), clock)


async def test_new_runs_are_reported_at_once_and_known_ones_at_an_interval(
    store: AsyncStore, keys: Keys, reporter: PrefetchReporter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = Seeds(store, keys)
    calls: list[Operation[Any]] = []
    run = SyncStore.run

    def count(store: SyncStore, operation: Operation[Any]) -> Any:
        calls.append(operation)
        return run(store, operation)

    monkeypatch.setattr(SyncStore, "run", count)
    first, other = f"{await seeds.create_task()}.1", f"{await seeds.create_task()}.1"

    async def report(*names: str) -> int:
        calls.clear()
        await asyncio.to_thread(reporter.report, frozenset(names))
        return len(calls)

    assert await report() == 0
    assert await report(first) == 1
    assert await report(first) == 0
    assert await report(first, other) == 1
    assert await report(other) == 0
    clock.advance(10.1)
    assert await report(other) == 1
    for name in (first, other):
        assert await store.redis.hget(keys.task(name[:-2]).record, "prefetched") is not None


def test_started_runs_and_other_tasks_are_not_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    active_request, prefetched_request, other = FakeRequest("a.1"), FakeRequest("b.2"), FakeRequest("a-celery-task")
    monkeypatch.setattr(state, "reserved_requests", {active_request, prefetched_request, other})
    monkeypatch.setattr(state, "active_requests", {active_request})

    assert fetched_runs() == {"b.2"}


def test_a_retry_that_arrived_before_the_end_of_its_execution_is_unfinished() -> None:
    state.reset_state()  # requests of earlier tests of this process
    active_request, retry = FakeRequest("a.1"), FakeRequest("a.1")
    state.task_reserved(active_request)
    state.task_accepted(active_request)
    state.task_scheduled(retry)

    state.task_ready(active_request)

    assert unfinished_requests() == [retry]
    assert fetched_runs() == {"a.1"}
    state.task_ready(retry)
    assert unfinished_requests() == []
