"""Signal handlers that run before Celery's handlers. Celery's handlers run in any case."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.celery.request import RunRequest
from a2a_celery.execution.process import shutdown
from a2a_celery.execution.process.shutdown import GracefulWorkerShutdown
from tests.support.clocks import ManualClock

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


@pytest.fixture
def handler_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of Celery's signal handlers that were called. The handlers are replaced, so that no process exits."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    calls: list[str] = []

    def begin(*_: object, name: str) -> None:
        if name == "a2a-last-resort":
            calls.append("last resort")

    for number, name in zip(SIGNALS, ("worker_Warm", "worker_Warm", "worker_Cold"), strict=True):
        signal.signal(number, celerys(name, calls))
    monkeypatch.setattr(shutdown, "start_daemon_thread", begin)
    monkeypatch.setattr(RunRequest, "pool_to_leave", None)
    yield calls
    for number, handler in handlers.items():
        signal.signal(number, handler)


def celerys(name: str, calls: list[str]) -> Any:
    def handler(number: int, frame: object) -> None:
        calls.append(f"{signal.Signals(number).name} {name}")

    handler.__name__ = name
    return handler


@pytest.fixture
def worker() -> GracefulWorkerShutdown:
    app = SimpleNamespace(conf=SimpleNamespace(worker_soft_shutdown_timeout=0))
    settings: Any = SimpleNamespace(cancel_grace=1)
    requeuer: Any = None
    return GracefulWorkerShutdown(SimpleNamespace(app=app, pool="the pool"), lambda: settings, requeuer)


def test_a_second_sigterm_is_a_cold_shutdown(handler_calls: list[str], worker: GracefulWorkerShutdown) -> None:
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)
    assert handler_calls == ["SIGTERM worker_Warm"]
    signal.raise_signal(signal.SIGTERM)

    assert handler_calls[1:] == ["last resort", "SIGQUIT worker_Cold"]
    assert RunRequest.pool_to_leave == "the pool"


def test_a_sigterm_after_a_ctrl_c_counts_as_the_first(handler_calls: list[str], worker: GracefulWorkerShutdown) -> None:
    worker.precede_celery()

    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)

    assert handler_calls == ["SIGINT worker_Warm", "SIGTERM worker_Warm"]


def test_a_sigterm_remapped_to_sigquit_is_a_cold_shutdown(
    handler_calls: list[str], worker: GracefulWorkerShutdown
) -> None:
    signal.signal(signal.SIGTERM, celerys("worker_Cold", handler_calls))
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)

    assert handler_calls == ["last resort", "SIGTERM worker_Cold"]


def test_an_error_of_our_handler_does_not_prevent_a_shutdown(
    handler_calls: list[str], worker: GracefulWorkerShutdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(shutdown, "requeue_waiting", broken)
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)

    assert handler_calls == ["SIGTERM worker_Warm"]


def test_other_handlers_are_unchanged(handler_calls: list[str], worker: GracefulWorkerShutdown) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, celerys("of_the_program", handler_calls))
    handlers = [signal.getsignal(number) for number in SIGNALS]

    worker.precede_celery()

    assert [signal.getsignal(number) for number in SIGNALS[:2]] == handlers[:2]


def test_a_worker_in_a_thread_has_no_signals(handler_calls: list[str], worker: GracefulWorkerShutdown) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=worker.precede_celery)
    thread.start()
    thread.join()

    assert [signal.getsignal(number) for number in SIGNALS] == handlers


LEASE = 15.0


class Outage:
    """Store that becomes unavailable, and a worker that shuts down. Each call to the store takes a second.

    Attributes:
        signals: Signals of the process, each with the seconds since the beginning of the outage.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, begins_after: float = 0.0) -> None:
        self.clock = ManualClock()
        self.begins_at = self.clock.monotonic() + begins_after
        self.tasks_end_after = 0.0
        self.signals: list[tuple[float, int]] = []
        settings: Any = SimpleNamespace(store_url="redis://nowhere", lease_ttl=LEASE)
        requeuer: Any = None
        self.worker = GracefulWorkerShutdown(
            SimpleNamespace(), lambda: settings, requeuer, clock=self.clock, check_interval=0
        )
        monkeypatch.setattr(shutdown, "SyncStore", lambda _: self)
        monkeypatch.setattr(shutdown, "others_at_work", lambda: self.seconds < self.tasks_end_after)
        monkeypatch.setattr(shutdown.os, "kill", lambda _, number: self.signals.append((self.seconds, number)))

    @property
    def seconds(self) -> float:
        return self.clock.monotonic() - self.begins_at

    def ping(self) -> None:
        self.clock.advance(1)
        if self.seconds > 0:
            raise StoreUnavailable("the store does not reply")


def test_runs_with_expired_leases_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch)

    outage.worker.watch_store()

    assert outage.signals == [(LEASE, signal.SIGQUIT)]


def test_the_shutdown_waits_for_agents_while_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, begins_after=3600)

    outage.worker.watch_store()

    assert outage.signals == [(LEASE, signal.SIGQUIT)]


def test_the_shutdown_waits_for_other_celery_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch)
    outage.tasks_end_after = 2 * LEASE

    outage.worker.watch_store()

    assert outage.signals == [(2 * LEASE, signal.SIGQUIT)]
