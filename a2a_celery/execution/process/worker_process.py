"""Per-process worker state: a background thread whose event loop owns the store connection, the lease keeper and the
agents. The app's lifespans open their resources on the same loop.

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
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from os import getpid
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.app import app_or_default
from celery.signals import worker_process_shutdown, worker_shutdown

from ...agents import Agent
from ...concurrency import LoopThread, settle
from ...dispatch import Publisher
from ...errors import ConfigError, StoreUnavailable
from ...hooks import Hooks
from ...lifecycle import Failure, Lost, Outcome
from ...lifecycle.outcomes import OUT_OF_TIME
from ...settings import Settings
from ...store import AsyncStore, Keys, SyncStore
from ...store.blobs.blob_store import blobs_of
from ...store.client.tracing import TracedStore
from ...store.log.pubsub import PubSubListener
from ...store.runs.commands import RunRef
from ...store.runs.publication import PublicationRecorder
from ...store.runs.renewal import renew_runs
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..agent_caller import AgentCaller
from ..agents.adapters import Adapter, make_adapter
from ..celery.celery_events import EventSender
from ..events.observers import CeleryEventEmitter
from ..events.run_telemetry import observe_run
from ..limits import CeleryLimits, limits_of
from ..plain_tasks.threaded_call import ThreadedCall
from ..run import Run
from .forced_stop import GracePeriod, RunEnder, Stop, end_process, in_pool_child, oversee, runner_prefix
from .leases import LeaseKeeper
from .shutdown_requeuer import ShutdownRequeuer
from .thread_cleanup import CleanupExecutor, ThreadCleanup

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
    hooks: Hooks = field(default_factory=Hooks)


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

Lifespan = Callable[[], AbstractAsyncContextManager[object]]

DISCONNECT_TIMEOUT = 1.0
"""Maximum seconds to close the connections of a process, for example while the store is unavailable."""


class OpenLifespans:
    """Lifespans of one process. One asyncio task enters and exits the lifespans, as anyio's cancel scopes require."""

    def __init__(self, lifespans: Sequence[Lifespan]) -> None:
        self._lifespans = lifespans
        self._holder: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]
        self._stopped = asyncio.Event()

    async def enter(self) -> None:
        """Enter the lifespans if they are not entered yet.

        Raises:
            ConfigError: A lifespan could not be entered. The lifespans that were already entered are exited, and the
                next call tries again.
        """
        if not self._lifespans:
            return
        if self._holder is None:
            self._entered = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._entered), name="a2a-lifespan")
        await asyncio.shield(self._entered)

    async def leave(self) -> None:
        """Exit the lifespans in reverse order. If a lifespan is still being entered, cancel it and its waiters."""
        self._stopped.set()
        if self._holder is not None:
            if self._entered.cancel():
                self._holder.cancel()
            await asyncio.wait({self._holder})

    async def _hold(self, entry_future: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for lifespan in self._lifespans:
                    await stack.enter_async_context(lifespan())
                settle(entry_future, None, None)
                await self._stopped.wait()
        except BaseException as e:  # including SystemExit, which would stop the event loop of all runs
            if entry_future.cancelled():
                logger.warning("the process stops while its lifespans are being entered")
            elif entry_future.done():
                logger.exception("a lifespan failed")
            else:
                self._holder = None
                error = ConfigError(f"a lifespan could not be entered: {type(e).__name__}: {e}")
                error.__cause__ = e
                entry_future.set_exception(error)


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
    """Runs of one worker process, and the resources that they share."""

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        cleanup: ThreadCleanup | None = None,
        lifespans: Sequence[Lifespan] = (),
        hooks: Hooks | None = None,
        calls: Callable[[WorkerProcess], AgentCaller] | None = None,
    ) -> None:
        self.settings = settings
        self.calls: AgentCaller | None = None
        self._make_calls = calls
        self._lifespan = OpenLifespans(lifespans)
        self.hooks = hooks or Hooks()
        self._cleanup = cleanup or ThreadCleanup()
        self.keys = Keys(settings.key_prefix)
        self.publisher = publisher
        self.runner_id = f"{runner_prefix(getpid())}{uuid4().hex[:8]}"
        self._sync_store = SyncStore(settings.store_url)
        self.events = EventSender()
        self._ender = RunEnder(lambda: settings)
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}
        self._under_way: dict[Run, Future[Outcome | None]] = {}
        self._loop_thread = LoopThread("a2a-runs", uvloop=settings.uvloop)
        self._loop = self._loop_thread.loop
        if not self._cleanup.is_empty:
            self._loop.set_default_executor(CleanupExecutor(self._cleanup))
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

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
        limits = limits_of(agent, celery, agent.grace(self.settings))
        new_run = Run(self, agent, task_id, run, limits, call, emitter=emitter, retries=retries)
        under_way: Future[Outcome | None] = asyncio.run_coroutine_threadsafe(
            observe_run(self._cleanup.around(new_run.perform), new_run.ref, agent.name), self._loop
        )
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
        limits = limits_of(agent, celery, agent.grace(self.settings))
        new_run = Run(self, agent, task_id, run, limits, emitter=emitter, retries=retries)
        return new_run, observe_run(self._cleanup.around(new_run.perform), new_run.ref, agent.name)

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
                self.force(run.ref, stop)

        return oversee(under_way, self._loop, check_run)

    def _due(self, run: Run) -> Stop | None:
        """Renew the lease of a run whose event loop is blocked. Return the reason why the run must stop, or None."""
        if not run.claimed or run.ended:
            return None
        renewal = renew_runs(self.keys, [(run.ref, run.token)], lease_us=self.leases.lease_us)
        try:
            answer = self._sync_store.run(renewal)
        except StoreUnavailable as e:
            logger.warning("run %s: its agent blocks the loop, and its lease was not renewed: %s", run.ref.name, e)
        else:
            if answer.cancel:
                return Stop.CANCEL
            if answer.interrupt:
                return Stop.INTERRUPT
            if answer.lost:
                return Stop.LOST
        return Stop.OUT_OF_TIME if run.out_of_time else None

    def force(self, ref: RunRef, stop: Stop) -> None:
        """See `run.RunHost`.

        If the run was cancelled or lost, the main process writes the outcome. The main process does not know that a run
        has reached its time limit, so this method then writes the outcome.
        """
        if not in_pool_child():
            return
        extra = about(Action.RUN_ABANDONED, ref.name)
        reason = f"run {ref.name}: its agent ignores the stop ({stop.value}): ending its process"
        logger.error(reason, extra=extra)
        if stop is Stop.OUT_OF_TIME:
            self._ender.end(ref.name, Failure(OUT_OF_TIME), worker_pid=getpid())
        end_process()

    async def adapter(self, agent: Agent) -> Adapter:
        """Return the adapter of `agent`, which is created once per process. A failed import is repeated in the next
        run."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = asyncio.ensure_future(self._build(agent))
            self._adapters[agent.name] = building
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    def close(self) -> None:
        """Exit the lifespans within `cancel_grace`, close the connections and end the thread.

        If an abandoned run is still active, the connections stay open.
        """
        try:
            asyncio.run_coroutine_threadsafe(self._lifespan.leave(), self._loop).result(self.settings.cancel_grace)
        except TimeoutError:
            logger.warning("the lifespans did not exit within %s s (a2a_cancel_grace)", self.settings.cancel_grace)
        if self.leases.is_empty:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result(DISCONNECT_TIMEOUT)
            self._loop_thread.stop()

    async def _build(self, agent: Agent) -> Adapter:
        try:
            await self._lifespan.enter()
            return await make_adapter(agent, self._cleanup)
        # raised in an asyncio task, these exceptions would stop the loop and therefore all runs
        except (SystemExit, KeyboardInterrupt) as e:
            raise ConfigError(f"agent {agent.name!r}: its code ends the process when it is loaded: {e!r}") from e

    async def _start(self) -> None:
        self.store: AsyncStore = TracedStore(
            self.settings.store_url, blobs_of(self.settings), wait_replicas=self.settings.store_wait_replicas
        )
        self.listener = PubSubListener(self.settings.store_url)
        self.publications = PublicationRecorder(self.store, self.keys)
        self.leases = LeaseKeeper(self.store, self.keys, self.settings.lease_ttl)
        if self._make_calls is not None:
            self.calls = self._make_calls(self)
        await self.listener.start()
        await self.listener.on_message(self.keys.runner(self.runner_id), self.leases.notified)
        self.leases.start()

    async def _disconnect(self) -> None:
        await self.leases.stop()
        await self.listener.stop()
        await self.publications.aclose()
        await self.store.aclose()
        self._sync_store.close()
