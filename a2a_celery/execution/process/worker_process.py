"""Per-process worker state: a background thread whose event loop executes the runs, and the threads that wait for runs.

The state is created at the first run, and therefore after any fork. On all pools, the coroutine of every run is
executed on this loop, because frameworks bind connections and locks to one loop, and because ``task.cancel()`` can
cancel a run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.app import app_or_default
from celery.signals import worker_process_shutdown, worker_shutdown

from ...agents import Agent
from ...concurrency import LoopThread
from ...errors import StoreUnavailable
from ...features import AppFeature
from ...lifecycle import Lost, Outcome
from ...lifecycle.references import RunRef
from ...settings import Settings
from ...store import SyncStore
from ...store.runs.renewal import renew_runs
from ..celery.celery_events import EventSender
from ..events.observers import CeleryEventEmitter
from ..limits import CeleryLimits
from ..plain_tasks.threaded_call import ThreadedCall
from ..run import Run, begin_run
from .forced_stop import GracePeriod, RunEnder, Stop, in_pool_child, oversee
from .run_host import RunHost
from .shutdown_requeuer import ShutdownRequeuer
from .thread_cleanup import CleanupExecutor

Receivers = tuple[tuple[Any, Callable[..., None]], ...]
"""Celery signals and their receivers. A receiver is a module-level function, not a closure."""


@dataclass(frozen=True)
class Installed:
    """Components of an app's worker side that signal receivers use."""

    settings: Callable[[], Settings]
    agents: Mapping[str, Agent]
    ender: RunEnder
    requeuer: ShutdownRequeuer
    close: Callable[[], None]
    """Function that closes the state of this process."""
    app_features: Sequence[AppFeature]


_installed_apps: WeakKeyDictionary[Celery, Installed] = WeakKeyDictionary()


def install(app: Celery, components: Installed, *receivers: Receivers) -> None:
    """Store the worker components of `app` for signal receivers, and connect the receivers.

    All apps of the process share the receivers. Celery's signals hold strong references to them.
    """
    _installed_apps[app] = components
    for signal, receiver in (pair for pairs in receivers for pair in pairs):
        signal.connect(receiver, weak=False, dispatch_uid=f"{receiver.__module__}.{receiver.__qualname__}")


def installed_on(app: Celery) -> Installed | None:
    """Return the worker components that `install` has stored for `app`, or None if there are none."""
    return _installed_apps.get(app)


logger = logging.getLogger(__name__)

DISCONNECT_TIMEOUT = 1.0
"""Maximum seconds to close the connections of a process, for example while the store is unavailable."""


def child_stops(**_: Any) -> None:
    """Close the state of a prefork child. The main process runs no agents and has no lifespans."""
    if in_pool_child():
        _close(app_or_default())


def worker_stops(sender: Any = None, **_: Any) -> None:
    """Close the state of a worker whose runs share its process."""
    _close(sender.app)


RECEIVERS: Receivers = ((worker_process_shutdown, child_stops), (worker_shutdown, worker_stops))


def _close(app: Celery) -> None:
    components = installed_on(app)
    if components is not None:
        components.close()


class WorkerProcess:
    """Thread with the event loop of a worker process, and the runs for which other threads wait.

    Args:
        new_host: Function that returns the host of the runs. It is called on the event loop.
        uvloop: True to use uvloop if it is installed.
    """

    def __init__(self, new_host: Callable[[], RunHost], *, uvloop: bool = True) -> None:
        self.events = EventSender()
        self._under_way: dict[Run, Future[Outcome | None]] = {}
        self._loop_thread = LoopThread("a2a-runs", uvloop=uvloop)
        self._loop = self._loop_thread.loop
        self._host = asyncio.run_coroutine_threadsafe(_start(new_host), self._loop).result()
        self._sync_store = SyncStore(self._host.settings.store_url)
        if self._host.cleanup is not None:
            self._loop.set_default_executor(CleanupExecutor(self._host.cleanup))

    def run(
        self,
        agent: Agent,
        task_id: str,
        run: int,
        celery: CeleryLimits,
        call: ThreadedCall | None = None,
        *,
        emitter: CeleryEventEmitter | None = None,
        retries: int = 0,
    ) -> Outcome | None:
        """Execute a run with `agent`, and block the calling thread until the run has ended.

        Args:
            agent: Agent to call.
            task_id: Id of the A2A task.
            run: Number of the run.
            celery: Celery's time limits for the run.
            call: Plain Celery task to call in this thread, or None for an agent.
            emitter: Emitter of Celery events, or None if the worker does not send events.
            retries: Number of earlier retries according to the Celery message.

        Returns:
            The outcome, or None if this worker did not claim the run.
        """
        ref = RunRef(task_id, run)
        new_run, performing = begin_run(self._host, agent, ref, celery, call, emitter=emitter, retries=retries)
        under_way = asyncio.run_coroutine_threadsafe(performing, self._loop)
        self._under_way[new_run] = under_way
        try:
            return self._await_outcome(under_way, new_run) if call is None else call.lend_thread(under_way)
        except CancelledError:
            return Lost()  # see `stop`
        except BaseException as e:
            # If the Celery task is ended from outside (by a time limit or an exit), the agent is also stopped.
            if not under_way.done():
                stop = Stop.OUT_OF_TIME if isinstance(e, SoftTimeLimitExceeded) else Stop.ABORT
                self._loop.call_soon_threadsafe(new_run.stop, stop)
                with suppress(Exception):
                    under_way.result(timeout=new_run.grace + 1)
            raise
        finally:
            self._under_way.pop(new_run, None)

    def begin(
        self,
        agent: Agent,
        task_id: str,
        run: int,
        celery: CeleryLimits,
        *,
        emitter: CeleryEventEmitter | None = None,
        retries: int = 0,
    ) -> tuple[Run, Coroutine[Any, Any, Outcome | None]]:
        """Return a run and the coroutine that performs it on `loop`.

        Unlike `run`, this method does not occupy a thread. The caller must stop the run if necessary.
        """
        return begin_run(self._host, agent, RunRef(task_id, run), celery, emitter=emitter, retries=retries)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def stop(self, celery_id: str) -> None:
        """Stop a requeued run. An agent that does not stop is abandoned, so that the run's thread becomes free.

        The call returns immediately and is safe in a signal handler.
        """

        async def stop(run: Run) -> None:
            run.stop(Stop.SHUTDOWN)

        for active_run, under_way in tuple(self._under_way.items()):  # two runs, if the message was delivered twice
            if active_run.ref.name != celery_id:
                continue
            asyncio.run_coroutine_threadsafe(stop(active_run), self._loop)
            last_resort = threading.Timer(active_run.grace + 1, under_way.cancel)
            last_resort.daemon = True
            last_resort.start()

    def _await_outcome(self, under_way: Future[Outcome | None], run: Run) -> Outcome | None:
        """Return the outcome of the run.

        If the agent of a prefork child blocks the event loop, this thread renews the lease and checks the limits.
        """
        if not in_pool_child():
            return under_way.result()
        grace_period = GracePeriod(run.grace)

        def check_run() -> None:
            stop = self._due(run)
            if grace_period.is_over(stop) and stop is not None:
                self._host.force(run.ref, stop)

        return oversee(under_way, self._loop, check_run)

    def _due(self, run: Run) -> Stop | None:
        """Renew the lease of a run whose event loop is blocked. Return the reason why the run must stop, or None."""
        if not run.claimed or run.ended:
            return None
        renewal = renew_runs(self._host.keys, [(run.ref, run.token)], lease_us=self._host.leases.lease_us)
        try:
            reply = self._sync_store.run(renewal)
        except StoreUnavailable as e:
            logger.warning("run %s: its agent blocks the loop, and its lease was not renewed: %s", run.ref.name, e)
        else:
            if reply.cancel:
                return Stop.CANCEL
            if reply.interrupt:
                return Stop.INTERRUPT
            if reply.lost:
                return Stop.LOST
        return Stop.OUT_OF_TIME if run.out_of_time else None

    def close(self) -> None:
        """Exit the lifespans within `cancel_grace`, close the connections and end the thread.

        If an abandoned run is still active, the connections stay open.
        """
        grace = self._host.settings.cancel_grace
        try:
            asyncio.run_coroutine_threadsafe(self._host.exit_lifespans(), self._loop).result(grace)
        except TimeoutError:
            logger.warning("the lifespans did not exit within %s s (a2a_cancel_grace)", grace)
        if self._host.leases.is_empty:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._host.disconnect(), self._loop).result(DISCONNECT_TIMEOUT)
            self._sync_store.close()
            self._loop_thread.stop()


async def _start(new_host: Callable[[], RunHost]) -> RunHost:
    host = new_host()
    await host.start()
    return host
