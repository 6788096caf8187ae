"""What comes before Celery's own signal handlers, and that these come all the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from a2a_celery.execution.celery.request import RunRequest
from a2a_celery.execution.process import shutdown
from a2a_celery.execution.process.shutdown import GracefulWorkerShutdown

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What Celery's handlers hear; nothing is ended by force."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    calls: list[str] = []

    def begin(thread: str) -> None:
        if thread == "a2a-last-resort":
            calls.append("last resort")

    for number, name in zip(SIGNALS, ("worker_Warm", "worker_Warm", "worker_Cold"), strict=True):
        signal.signal(number, celerys(name, calls))
    monkeypatch.setattr(shutdown, "Thread", lambda **options: SimpleNamespace(start=lambda: begin(options["name"])))
    monkeypatch.setattr(RunRequest, "pool_to_leave", None)
    yield calls
    for number, handler in before.items():
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


def test_a_second_sigterm_is_a_cold_shutdown(heard: list[str], worker: GracefulWorkerShutdown) -> None:
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)
    assert heard == ["SIGTERM worker_Warm"]
    signal.raise_signal(signal.SIGTERM)

    assert heard[1:] == ["last resort", "SIGQUIT worker_Cold"]
    assert RunRequest.pool_to_leave == "the pool"


def test_a_sigterm_behind_a_ctrl_c_is_the_first(heard: list[str], worker: GracefulWorkerShutdown) -> None:
    worker.precede_celery()

    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)

    assert heard == ["SIGINT worker_Warm", "SIGTERM worker_Warm"]


def test_a_sigterm_that_was_made_a_sigquit_is_cold_at_once(heard: list[str], worker: GracefulWorkerShutdown) -> None:
    signal.signal(signal.SIGTERM, celerys("worker_Cold", heard))
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)

    assert heard == ["last resort", "SIGTERM worker_Cold"]


def test_what_fails_here_keeps_no_worker_from_stopping(
    heard: list[str], worker: GracefulWorkerShutdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(shutdown, "requeue_waiting", broken)
    worker.precede_celery()

    signal.raise_signal(signal.SIGTERM)

    assert heard == ["SIGTERM worker_Warm"]


def test_handlers_that_are_not_celerys_are_left_alone(heard: list[str], worker: GracefulWorkerShutdown) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, celerys("of_the_program", heard))
    before = [signal.getsignal(number) for number in SIGNALS]

    worker.precede_celery()

    assert [signal.getsignal(number) for number in SIGNALS[:2]] == before[:2]


def test_a_worker_in_a_thread_has_no_signals(heard: list[str], worker: GracefulWorkerShutdown) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=worker.precede_celery)
    thread.start()
    thread.join()

    assert [signal.getsignal(number) for number in SIGNALS] == before
