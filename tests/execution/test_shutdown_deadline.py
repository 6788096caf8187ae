"""Warm shutdowns. They finish even if the broker or the store does not respond, and wait for agents while the store
responds."""

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
    """Stand-in for a request that the worker executes. Celery holds only weak references to requests."""


class Shutdown:
    """Warm shutdown with a clock that the test moves."""

    def __init__(self, pool: type = TaskPool) -> None:
        self.clock = ManualClock()
        self.blueprint = SimpleNamespace(state=RUN, shutdown_complete=Event())
        consumer = SimpleNamespace(blueprint=self.blueprint, pool=object.__new__(pool))
        self.deadline = ShutdownDeadline(consumer, LEASE, clock=self.clock)

    def close(self) -> None:
        """Let Celery close its consumer."""
        self.blueprint.state = CLOSE
        self.blueprint.shutdown_complete.set()

    def action_after(self, seconds: float, *, store_answers: bool = True) -> ShutdownAction | None:
        """Advance the clock by `seconds`. Return the action that is then due, or None."""
        self.clock.advance(seconds)
        if store_answers:
            self.deadline.store_has_answered()
        return self.deadline.next_action()


@pytest.fixture
def active_request(monkeypatch: pytest.MonkeyPatch) -> Request:
    """The only request that this process executes."""
    request = Request()
    monkeypatch.setattr(state, "active_requests", WeakSet([request]))
    return request


def test_an_unresponsive_main_loop_is_interrupted_once(active_request: Request) -> None:
    shutdown = Shutdown()

    assert shutdown.action_after(NOTICE - 1) is None
    assert shutdown.action_after(1) is ShutdownAction.INTERRUPT
    assert shutdown.action_after(LONG) is None


def test_solo_runs_its_agent_in_the_main_loop(active_request: Request) -> None:
    shutdown = Shutdown(SoloPool)

    assert shutdown.action_after(LONG) is None
    state.active_requests.discard(active_request)
    assert shutdown.action_after(0) is ShutdownAction.INTERRUPT


def test_a_connection_that_does_not_close_is_cut_once(active_request: Request) -> None:
    shutdown = Shutdown()
    shutdown.blueprint.state = CLOSE

    assert shutdown.action_after(LONG) is None
    assert shutdown.action_after(NOTICE) is ShutdownAction.CUT
    assert shutdown.action_after(LONG) is None


def test_the_shutdown_waits_for_agents_while_the_store_answers(active_request: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()

    assert [shutdown.action_after(LONG) for _ in range(3)] == [None] * 3


def test_runs_with_expired_leases_are_given_up(active_request: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()

    assert shutdown.action_after(LONG) is None
    assert shutdown.action_after(LEASE - 1, store_answers=False) is None
    assert shutdown.action_after(1, store_answers=False) is ShutdownAction.GO_COLD
    assert shutdown.action_after(LEASE, store_answers=False) is None


def test_an_idle_worker_ends(active_request: Request) -> None:
    shutdown = Shutdown()
    shutdown.close()
    assert shutdown.action_after(LONG) is None

    state.active_requests.discard(active_request)

    assert shutdown.action_after(0) is None
    assert shutdown.action_after(UNWINDING) is ShutdownAction.END
