"""What a worker process has once: a thread with an event loop, and on it the store, the leases and the agents.

Made at the first run, so after any fork. Every run's coroutine lives on that loop, whatever Celery's pool: frameworks
keep connections and locks that belong to one loop, and cancelling is ``task.cancel()`` there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from os import getpid
from typing import Any
from uuid import uuid4

from billiard.exceptions import SoftTimeLimitExceeded

from ..agents import Agent
from ..config import Settings
from ..dispatch import Publisher
from ..errors import ConfigError, StoreUnavailable
from ..lifecycle import Failed, Lost, Outcome
from ..lifecycle.outcomes import OUT_OF_TIME
from ..loops import new_loop
from ..store import AsyncStore, Keys, SyncStore
from ..store.blobs import blobs_of
from ..store.leases import renew_runs
from ..store.runs import RunRef
from ..store.traced import TracedStore
from ..store.wake import WakeLine
from ..telemetry.logs import about
from ..telemetry.names import Action
from .adapters import Adapter, make_adapter
from .calls import ThreadedCall
from .celery_events import EventSender
from .ending import RunEnder, runner_prefix
from .force import Patience, Stop, end_process, in_pool_child, oversee
from .leases import LeaseKeeper
from .limits import CeleryLimits, limits_of
from .observing import observed
from .run import Run
from .showing import Tell
from .thread_cleanup import CleanupExecutor, ThreadCleanup

logger = logging.getLogger(__name__)


class WorkerProcess:
    """The runs of one worker process."""

    def __init__(self, settings: Settings, publisher: Publisher, cleanup: ThreadCleanup | None = None) -> None:
        self.settings = settings
        self._cleanup = cleanup or ThreadCleanup()
        self.keys = Keys(settings.key_prefix)
        self.publisher = publisher
        self.runner_id = f"{runner_prefix(getpid())}{uuid4().hex[:8]}"
        self._sync_store = SyncStore(settings.store_url)
        self.events = EventSender()
        self._ender = RunEnder(lambda: settings)
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}
        self._under_way: dict[Run, Future[Outcome | None]] = {}
        self._loop = new_loop(uvloop=settings.uvloop)
        if not self._cleanup.is_empty:
            self._loop.set_default_executor(CleanupExecutor(self._cleanup))
        self._thread = threading.Thread(target=self._serve, name="a2a-runs", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def run(
        self,
        agent: Agent,
        task_id: str,
        run: int,
        celery: CeleryLimits,
        call: ThreadedCall | None = None,
        *,
        tell: Tell | None = None,
    ) -> Outcome | None:
        """Runs `agent` for run `run` of `task_id` and tells how it ended; blocks the thread it is called in, or
        lends it to the `call` that is to be made there instead. `tell` is for Celery events of its execution.

        None: the run was not ours.
        """
        this = Run(self, agent, task_id, run, limits_of(agent, celery, self.settings.cancel_grace), call, tell=tell)
        under_way: Future[Outcome | None] = asyncio.run_coroutine_threadsafe(
            observed(self._cleanup.around(this.perform), this.ref, agent.name), self._loop
        )
        self._under_way[this] = under_way
        try:
            return self._awaited(under_way, this) if call is None else call.lend_thread(under_way)
        except CancelledError:
            return Lost()  # see `stop`
        except BaseException as e:
            # Whatever ends the Celery task from outside (a time limit, an exit) ends the agent too.
            if not under_way.done():
                stop = Stop.OUT_OF_TIME if isinstance(e, SoftTimeLimitExceeded) else Stop.ABORT
                self._loop.call_soon_threadsafe(this.stop, stop)
                with suppress(Exception):
                    under_way.result(timeout=self.settings.cancel_grace + 1)
            raise
        finally:
            self._under_way.pop(this, None)

    def begin(
        self, agent: Agent, task_id: str, run: int, celery: CeleryLimits, *, tell: Tell | None = None
    ) -> tuple[Run, Coroutine[Any, Any, Outcome | None]]:
        """As `run`, for whoever can await it on the `loop`: takes no thread. Whoever awaits it stops it, too."""
        this = Run(self, agent, task_id, run, limits_of(agent, celery, self.settings.cancel_grace), tell=tell)
        return this, observed(self._cleanup.around(this.perform), this.ref, agent.name)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all runs of this process."""
        return self._loop

    def stop(self, celery_id: str) -> None:
        """Stops a run that has been handed back; one whose agent won't stop is left behind, so that its thread is free.

        Returns at once; fit for a signal handler.
        """

        async def stop(run: Run) -> None:
            run.stop(Stop.LEAVING)

        for this, under_way in tuple(self._under_way.items()):  # two, if its message came twice
            if this.ref.name != celery_id:
                continue
            asyncio.run_coroutine_threadsafe(stop(this), self._loop)
            last_resort = threading.Timer(self.settings.cancel_grace + 1, under_way.cancel)
            last_resort.daemon = True
            last_resort.start()

    def _awaited(self, under_way: Future[Outcome | None], run: Run) -> Outcome | None:
        """How the run ends. An agent that blocks the loop can't be reached there: this thread sees to its run then."""
        if not in_pool_child():
            return under_way.result()
        patience = Patience(self.settings.cancel_grace)

        def blocked() -> None:
            stop = self._due(run)
            if patience.over(stop) and stop is not None:
                self.force(run.ref, stop)

        return oversee(under_way, self._loop, blocked)

    def _due(self, run: Run) -> Stop | None:
        """Why a run should stop whose loop is blocked; None: go on, its lease is renewed."""
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
            if answer.lost:
                return Stop.LOST
        return Stop.OUT_OF_TIME if run.out_of_time else None

    def force(self, ref: RunRef, stop: Stop) -> None:
        """See `host.Host`. A client's cancel, and a worker that was lost, are written by the main process, when this
        one is gone; that time was out is known here only."""
        if not in_pool_child():
            return
        said = about(Action.RUN_LEFT_BEHIND, ref.name)
        reason = f"run {ref.name}: its agent ignores that it was stopped ({stop.value}): ending its process"
        logger.error(reason, extra=said)
        if stop is Stop.OUT_OF_TIME:
            self._ender.end(ref.name, Failed(OUT_OF_TIME), worker_pid=getpid())
        end_process()

    async def adapter(self, agent: Agent) -> Adapter:
        """The agent's code, imported and built once per process; a failure is tried again at the next run."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = asyncio.ensure_future(self._build(agent))
            self._adapters[agent.name] = building
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    async def _build(self, agent: Agent) -> Adapter:
        try:
            return await make_adapter(agent, self._cleanup)
        except (SystemExit, KeyboardInterrupt) as e:  # out of a task they would stop the loop, and with it every run
            raise ConfigError(f"agent {agent.name!r}: its code ends the process when it is loaded: {e!r}") from e

    async def _start(self) -> None:
        self.store: AsyncStore = TracedStore(self.settings.store_url, blobs_of(self.settings))
        self.line = WakeLine(self.settings.store_url)
        self.leases = LeaseKeeper(self.store, self.keys, self.settings.lease_ttl)
        await self.line.start()
        await self.line.on_message(self.keys.runner(self.runner_id), self.leases.asked_to_cancel)
        self.leases.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # a task of an agent's own called sys.exit(): the loop is everybody's
                logger.exception("something on the loop of all runs tried to end the process")
