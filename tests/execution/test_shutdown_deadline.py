"""A warm shutdown ends although the broker or the store does not answer, and waits for agents while the store does."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from celery.bootsteps import CLOSE, RUN
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from a2a_celery.execution.process.shutdown_deadline import NOTICE, UNWINDING, ShutdownAction, ShutdownDeadline
from tests.support.clocks import ManualClock

LEASE = 15.0
LONG = 3600.0


class Request:
    """A request under way, of which Celery keeps weak references."""


class Shutdown:
    """A warm shutdown at a time that a test moves."""

    def __init__(self, pool: type = TaskPool) -> None:
        self.clock = ManualClock()
        self.blueprint = SimpleNamespace(state=RUN, shutdown_complete=Event())
        consumer = SimpleNamespace(blueprint=self.blueprint, pool=object.__new__(pool))
        self.deadline = ShutdownDeadline(consumer, LEASE, clock=self.clock)

    def close(self) -> None:
        """Celery has closed its consumer."""
        self.blueprint.state = CLOSE
        self.blueprint.shutdown_complete.set()

    def after(self, seconds: float, *, store_answers: bool = True) -> ShutdownAction | None:
        """Return what is due when so many seconds more have passed."""
        self.clock.advance(seconds)
        if store_answers:
            self.deadline.store_has_answered()
        return self.deadline.next_action()


@pytest.fixture
def request_under_way(monkeypatch: pytest.MonkeyPatch) -> Request:
    """The one request that this process works on."""
    request = Request()
    monkeypatch.setattr(state, "active_requests", WeakSet([request]))
    return request


def test_a_main_loop_that_does_not_notice_is_interrupted_once(request_under_way: Request) -> None:
    shutdown = Shutdown()

    assert shutdown.after(NOTICE - 1) is None
    assert shutdown.after(1) is ShutdownAction.INTERRUPT
    assert shutdown.after(LONG) is None


def test_solo_runs_its_agent_in_the_main_loop(request_under_way: Request) -> None:
    shutdown = Shutdown(SoloPool)

    assert shutdown.after(LONG) is None
    state.active_requests.discard(request_under_way)
    assert shutdown.after(0) is ShutdownAction.INTERRUPT


def test_a_connection_that_does_not_close_is_cut_once(request_under_way: Request) -> None:
    shutdown = Shutdown()
    shutdown.blueprint.state = CLOSE

    assert shutdown.after(LONG) is None
    assert shutdown.after(NOTICE) is ShutdownAction.CUT
    assert shutdown.after(LONG) is None


def test_agents_at_work_are_waited_for_while_the_store_answers(request_under_way: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()

    assert [shutdown.after(LONG) for _ in range(3)] == [None] * 3


def test_runs_whose_leases_are_over_are_given_up(request_under_way: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()

    assert shutdown.after(LONG) is None
    assert shutdown.after(LEASE - 1, store_answers=False) is None
    assert shutdown.after(1, store_answers=False) is ShutdownAction.GO_COLD
    assert shutdown.after(LEASE, store_answers=False) is None


def test_a_worker_that_runs_nothing_ends(request_under_way: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()
    assert shutdown.after(LONG) is None

    state.active_requests.discard(request_under_way)

    assert shutdown.after(0) is None
    assert shutdown.after(UNWINDING) is ShutdownAction.END
