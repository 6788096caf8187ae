"""Graceful shutdown of a worker: waiting runs are requeued immediately, and agents that hang do not block the exit.

Celery sends its shutdown signal only after a cold shutdown has waited for the pool. The handlers of this module
therefore precede Celery's handlers of SIGTERM, SIGINT and SIGQUIT, and then call them. There is one difference: Celery
treats a second SIGTERM like the first, whereas these handlers then begin the cold shutdown of SIGQUIT.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread, current_thread, main_thread
from time import sleep
from types import FrameType, MappingProxyType
from typing import Any

from celery.signals import task_received
from celery.worker import state

from ...agents import Agent, longest_grace
from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import start_daemon_thread
from ...errors import StoreUnavailable
from ...settings import Settings
from ...store import SyncStore
from ..celery.request import RunRequest, unfinished_requests
from .shutdown_requeuer import LAST_WAIT, ShutdownRequeuer

logger = logging.getLogger(__name__)

UNWINDING = 3.0
"""Seconds, in addition to Celery's soft shutdown timeout and the longest `cancel_grace`, after which the process of a
cold shutdown is ended by force."""

STORE_CHECK_INTERVAL = 1.0
"""Seconds between two checks of the store during a warm shutdown."""

EXIT_CODE = 1
"""Exit code of a process that is ended by force, as after Celery's cold shutdown."""

Handler = Callable[[int, FrameType | None], Any]


class GracefulWorkerShutdown:
    """Graceful shutdown of one worker, in its main process."""

    def __init__(
        self,
        consumer: Any,
        settings: Callable[[], Settings],
        requeuer: ShutdownRequeuer,
        agents: Mapping[str, Agent] = MappingProxyType({}),
        clock: Clock = SYSTEM_CLOCK,
        check_interval: float = STORE_CHECK_INTERVAL,
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._requeuer = requeuer
        self._agents = agents
        self._clock = clock
        self._check_interval = check_interval
        self._begun = False
        self._terminated = False

    def precede_celery(self) -> None:
        """Install signal handlers that precede Celery's. An embedded worker has no Celery handlers and is unchanged."""
        if current_thread() is not main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            handler = signal.getsignal(number)
            if callable(handler) and getattr(handler, "__name__", "").startswith("worker_"):
                signal.signal(number, partial(self._on_signal, handler))

    def _on_signal(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        try:
            if not self._begun:
                self._begun = True
                start_daemon_thread(self.watch_store, name="a2a-shutdown-store")
                requeue_waiting()
                task_received.connect(received_late, weak=False, dispatch_uid="a2a_celery.received_late")
            if is_cold(handler):
                self._go_cold()
        except Exception:  # the worker must stop after any error
            logger.exception("this worker shuts down without requeuing its runs")
        cold = signal.getsignal(signal.SIGQUIT)
        if number == signal.SIGTERM and self._terminated and callable(cold):
            cold(signal.SIGQUIT, frame)
            return
        self._terminated = self._terminated or number == signal.SIGTERM
        handler(number, frame)

    def watch_store(self) -> None:
        """Begin a cold shutdown if the store does not reply for `lease_ttl`, because the leases of the runs have then
        expired, and their outcomes cannot be written."""
        settings = self._settings()
        store, answered_at = SyncStore(settings.store_url), self._clock.monotonic()
        while self._clock.monotonic() - answered_at < settings.lease_ttl or others_at_work():
            sleep(self._check_interval)
            with suppress(StoreUnavailable):
                store.ping()
                answered_at = self._clock.monotonic()
        logger.warning("the store does not reply, so the leases have expired: this worker abandons its runs")
        os.kill(os.getpid(), signal.SIGQUIT)

    def _go_cold(self) -> None:
        RunRequest.pool_to_leave = self._consumer.pool
        soft = self._consumer.app.conf.worker_soft_shutdown_timeout or 0
        within = soft + longest_grace(self._agents.values(), self._settings()) + UNWINDING
        start_daemon_thread(self._end_by_force, within, name="a2a-last-resort")

    def _end_by_force(self, within: float) -> None:
        """End the process if Celery has not ended it within `within` seconds, because an agent may block its thread or
        the event loop.

        A worker that executes other Celery tasks is not ended by force.
        """
        sleep(within)
        if others_at_work():
            logger.warning("Celery tasks that are not agents still run: the process is not ended by force")
            return
        logger.error("this worker did not shut down within %g s: ending its process", within)
        for request in unfinished_requests():
            if is_run(request):
                request.give_up()
        self._end_now()

    def _end_now(self) -> None:
        self._requeuer.wait(LAST_WAIT)
        hanging_up = Thread(target=self._hang_up, name="a2a-hanging-up", daemon=True)
        hanging_up.start()
        hanging_up.join(LAST_WAIT)
        os._exit(EXIT_CODE)

    def _hang_up(self) -> None:
        """Close the broker connection, so that the broker immediately requeues unacknowledged messages."""
        with suppress(Exception):
            self._consumer.connection.close()


def is_cold(handler: Handler) -> bool:
    """Return True if Celery's `handler` begins a cold shutdown: the handler of SIGQUIT, or of SIGTERM with
    REMAP_SIGTERM."""
    return getattr(handler, "__name__", "") == "worker_Cold"


def is_run(request: Any) -> bool:
    """Return True if a Celery request is a run of an A2A task."""
    return isinstance(request, RunRequest) and request.is_run


def others_at_work() -> bool:
    return any(not is_run(request) for request in tuple(state.active_requests))


def requeue_waiting() -> None:
    """Requeue all runs that wait in this worker. Celery returns their messages to the broker when it exits."""
    for request in unfinished_requests():
        if is_run(request) and request.time_start is None:
            request.give_up()


def received_late(request: Any = None, **_: Any) -> None:
    """Requeue a run that arrives during the shutdown."""
    if is_run(request):
        request.give_up()
