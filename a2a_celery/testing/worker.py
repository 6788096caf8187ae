"""Simulated worker process that executes runs like a real worker, but on the event loop of the test."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from celery.app.trace import build_tracer

from ..agents import Agent
from ..concurrency import settle
from ..dispatch import RUN_HEADER, Publisher, RunOptions
from ..errors import ConfigError
from ..execution.agent_caller import AgentCaller
from ..execution.agents.adapters import Adapter, make_adapter
from ..execution.celery.celery_events import EventSender
from ..execution.events.observers import CeleryEventEmitter
from ..execution.events.run_telemetry import observe_run
from ..execution.limits import CeleryLimits, limits_of
from ..execution.plain_tasks.threaded_call import ThreadedCall
from ..execution.process.forced_stop import Stop
from ..execution.process.leases import LeaseKeeper
from ..execution.process.thread_cleanup import ThreadCleanup
from ..execution.process.worker_process import Lifespan, OpenLifespans
from ..execution.run import Run
from ..hooks import Hooks
from ..lifecycle import Lost, Outcome
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.log.pubsub import PubSubListener
from ..store.runs.commands import RunRef
from ..store.runs.publication import PublicationRecorder
from .clock import SimulatedClock
from .store import SimulatedStore

logger = logging.getLogger(__name__)

_thread = threading.local()
"""Thread-local state, whose attribute `worker` is the simulated worker that calls a plain Celery task in the thread."""


def worker_of_thread() -> Any:
    """Return the simulated worker that calls a plain Celery task in this thread."""
    return _thread.worker


@dataclass(eq=False)
class ActiveRun:
    """Run that a worker has received and that has not ended.

    Attributes:
        ref: Task and number of the run.
        run: The run, or None until the thread of a plain Celery task calls `SimulatedWorker.run`.
        performing: asyncio task that performs the run, or that waits for the thread of a plain Celery task.
        is_in_thread: True for a plain Celery task.
    """

    ref: RunRef
    run: Run | None
    performing: asyncio.Task[object]
    is_in_thread: bool = False

    @property
    def is_claimed(self) -> bool:
        """True if the run was claimed or has ended."""
        return self.performing.done() or (self.run is not None and self.run.claimed)


class SimulatedWorker:
    """Worker of a simulation. Like a worker process, it has a store connection, leases, lifespans and executors.

    Args:
        settings: Settings of the simulation.
        publisher: Publisher of runs.
        cleanup: Cleanup after the code of agents.
        lifespans: Lifespans to enter before the first agent is loaded.
        hooks: Hooks before and after each run.
        calls: Function that returns the `AgentCaller` of a worker, or None.
        clock: Clock of the simulation.
        on_recorded: Function that is called with this worker and the keys of recorded journal entries.
    """

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        cleanup: ThreadCleanup,
        lifespans: Sequence[Lifespan],
        hooks: Hooks,
        calls: Callable[[SimulatedWorker], AgentCaller] | None,
        *,
        clock: SimulatedClock,
        on_recorded: Callable[[SimulatedWorker, list[str]], None],
    ) -> None:
        self.settings, self.publisher, self.hooks, self.clock = settings, publisher, hooks, clock
        self.keys = Keys(settings.key_prefix)
        self.runner_id = f"simulated-{uuid4().hex[:8]}"
        self.events = EventSender()
        self.loop = asyncio.get_running_loop()
        self.listener = PubSubListener(settings.store_url)
        self._simulated_store = SimulatedStore(settings, clock, lambda keys: on_recorded(self, keys))
        self.store: AsyncStore = self._simulated_store
        self.publications = PublicationRecorder(self.store, self.keys, clock)
        self.leases = LeaseKeeper(self.store, self.keys, settings.lease_ttl, clock)
        self.calls = calls(self) if calls is not None else None
        self.active: set[ActiveRun] = set()
        self._cleanup = cleanup
        self._lifespans = OpenLifespans(lifespans)
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}

    async def start(self) -> None:
        """Connect to the store, and subscribe to the worker's channel."""
        await self.listener.start()
        await self.listener.on_message(self.keys.runner(self.runner_id), self.leases.notified)

    async def stop(self) -> None:
        """Stop all runs without recording their outcomes, exit the lifespans and close the connections."""
        await self.publications.aclose()
        await self.kill()
        await self._lifespans.leave()
        await self.listener.stop()
        await self.store.aclose()

    def disconnect(self) -> None:
        """Cut the connection to the store, so that the worker can no longer write."""
        self._simulated_store.kill()

    async def kill(self) -> list[ActiveRun]:
        """Stop as if the process had been killed, and return the runs that were active. The worker can no longer write.

        Coroutines of agents are cancelled, because Python has no other way to end them. A function in a thread
        continues until it returns, and its result is dropped.
        """
        self.disconnect()
        await self.publications.aclose()
        killed_runs = list(self.active)
        for active in killed_runs:
            if active.run is not None and active.run.claimed:
                active.run.mark_lost()
            if active.is_in_thread or not active.is_claimed:
                active.performing.cancel()
        if killed_runs:
            await asyncio.wait({active.performing for active in killed_runs})
        return killed_runs

    def execute(self, agent: Agent, task_id: str, number: int, options: RunOptions) -> None:
        """Begin a run, like a worker that has received the message of the run."""
        ref = RunRef(task_id, number)
        if options.call is not None:
            calling = self.loop.create_task(self._call_task(agent, ref, options))
            active = ActiveRun(ref, None, calling, is_in_thread=True)
        else:
            limits = limits_of(agent, CeleryLimits(), agent.grace(self.settings))
            run = Run(self, agent, task_id, number, limits, retries=options.retries, clock=self.clock)
            active = ActiveRun(ref, run, self.loop.create_task(self._perform(run, agent)))
        self.active.add(active)
        active.performing.add_done_callback(lambda _: self.active.discard(active))

    def run(
        self,
        agent: Agent,
        task_id: str,
        number: int,
        celery: CeleryLimits,
        call: ThreadedCall,
        *,
        emitter: CeleryEventEmitter | None = None,
    ) -> Outcome | None:
        """Execute a run of a plain Celery task, and call the task in the calling thread. See `WorkerProcess.run`."""
        ref = RunRef(task_id, number)
        call.retry_is_published = False  # no worker receives the message of a retry, so the watcher publishes the run
        limits = limits_of(agent, celery, agent.grace(self.settings))
        run = Run(self, agent, task_id, number, limits, call, emitter=emitter, clock=self.clock)
        for active in tuple(self.active):
            if active.ref == ref:
                active.run = run
        return call.lend_thread(asyncio.run_coroutine_threadsafe(self._perform(run, agent), self.loop))

    async def adapter(self, agent: Agent) -> Adapter:
        """Return the adapter of the agent. A worker creates the adapter once."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = self._adapters[agent.name] = asyncio.ensure_future(self._build(agent))
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    def force(self, ref: RunRef, stop: Stop) -> None:
        """Do nothing, because the process of the test must not exit. The run abandons the agent."""

    async def _build(self, agent: Agent) -> Adapter:
        try:
            await self._lifespans.enter()
            return await make_adapter(agent, self._cleanup)
        except (SystemExit, KeyboardInterrupt) as e:
            raise ConfigError(f"agent {agent.name!r}: its code ends the process when it is loaded: {e!r}") from e

    async def _perform(self, run: Run, agent: Agent) -> Outcome | None:
        try:
            return await observe_run(self._cleanup.around(run.perform), run.ref, agent.name)
        except asyncio.CancelledError:
            return Lost()  # killed before the claim

    async def _call_task(self, agent: Agent, ref: RunRef, options: RunOptions) -> None:
        """Call a plain Celery task in a thread, as Celery's thread pool does."""
        assert options.call is not None
        task, call, return_future = agent.code, options.call, self.loop.create_future()
        message = {
            "id": ref.name,
            "delivery_info": {},
            "headers": {RUN_HEADER: True},
            RUN_HEADER: True,
            "ignore_result": True,  # the test has no result backend
            "retries": options.retries,
        }

        def work() -> None:
            _thread.worker = self
            try:
                build_tracer(task.name, task, app=task.app)(ref.name, (), dict(call.kwargs), message)
            except BaseException:
                logger.exception("run %s: Celery could not call the task", ref.name)
            finally:
                with suppress(RuntimeError):  # the test has ended
                    self.loop.call_soon_threadsafe(settle, return_future, None, None)

        threading.Thread(target=work, name=f"a2a-simulated-{ref.name}", daemon=True).start()
        await return_future
