"""Metrics and health probes on a watcher's port, also before the first tick of a role has ended."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import httpx
from celery import Celery

from a2a_celery import A2A
from a2a_celery.watcher.metrics import MAX_TICK_AGE, WatcherMetrics
from a2a_celery.watcher.role_loop import MIN_TICK_INTERVAL, RoleLoop
from tests.support.clocks import ManualClock
from tests.support.waiting import LIMIT, eventually_async


def test_clients_that_say_nothing_keep_no_probe_waiting() -> None:
    port = WatcherMetrics().serve("127.0.0.1", 0)
    with ExitStack() as sockets:
        for _ in range(3):
            sockets.enter_context(socket.create_connection(("127.0.0.1", port)))

        assert httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=LIMIT, trust_env=False).status_code == 200


class HangingRole:
    """Role whose first tick does not end."""

    name = "hanging"
    every = 1.0

    async def tick(self) -> None:
        await asyncio.Event().wait()


async def test_a_role_whose_first_tick_hangs_is_reported() -> None:
    clock = ManualClock()
    metrics = WatcherMetrics(clock)
    loop = RoleLoop(HangingRole(), metrics=metrics)
    loop.start()
    clock.advance(MAX_TICK_AGE + 1)

    assert metrics.tick_ages() == {"hanging": MAX_TICK_AGE + 1}
    url = f"http://127.0.0.1:{metrics.serve('127.0.0.1', 0)}/health/live"
    assert (await asyncio.to_thread(httpx.get, url, timeout=LIMIT, trust_env=False)).status_code == 503
    await loop.stop()


async def ticks(metrics: WatcherMetrics, outcome: str, role: str = "heartbeat") -> float | None:
    """Return the value of the counter for the ticks of a role, or None if the series does not exist."""
    return metrics.registry.get_sample_value("a2a_watcher_ticks_total", {"role": role, "outcome": outcome})


class FailingRole:
    """Role whose first tick fails."""

    name = "failing"
    every = 0.0

    def __init__(self) -> None:
        self._has_failed = False

    async def tick(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise RuntimeError("the store is unavailable")


async def test_a_failed_tick_is_counted_and_repeated() -> None:
    metrics, clock = WatcherMetrics(), ManualClock()
    loop = RoleLoop(FailingRole(), metrics=metrics, clock=clock)
    loop.start()
    await eventually_async(lambda: ticks(metrics, "failed", "failing"))

    assert await ticks(metrics, "ok", "failing") == 0
    clock.advance(MIN_TICK_INTERVAL)
    await eventually_async(lambda: ticks(metrics, "ok", "failing"))
    assert await ticks(metrics, "failed", "failing") == 1
    await loop.stop()


async def test_a_watcher_that_starts_without_a_store_counts_no_successful_tick() -> None:
    """The alert A2AStoreUnavailable needs the series of successful ticks."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.a2a_store_url = "redis://127.0.0.1:1/0"
    watcher, stop = A2A(app).watcher(), asyncio.Event()
    running = asyncio.create_task(watcher.run(stop))

    await eventually_async(lambda: ticks(watcher.metrics, "failed"))

    assert await ticks(watcher.metrics, "ok") == 0
    stop.set()
    await running
