"""Simulated worker process that executes runs like a real worker, but on the event loop of the test."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.app.trace import build_tracer

from ..agents import Agent
from ..concurrency import settle
from ..dispatch import RUN_HEADER, RunOptions
from ..execution.celery.celery_events import EventSender
from ..execution.events.observers import CeleryEventEmitter
from ..execution.limits import CeleryLimits
from ..execution.plain_tasks.threaded_call import ThreadedCall
from ..execution.process.run_host import RunHost
from ..execution.run import Run, begin_run
from ..lifecycle import Outcome
from ..lifecycle.references import RunRef
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
    """Worker of a simulation: the host of a worker process, whose runs are executed on the event loop of the test.

    Args:
        host: Host of the runs.
        store: Store client of the host.
    """

    def __init__(self, host: RunHost, store: SimulatedStore) -> None:
        self.host, self._store = host, store
        self.events = EventSender()
        self.active: set[ActiveRun] = set()
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Stop all runs without recording their outcomes, exit the lifespans and close the connections."""
        await self.host.runs.aclose()
        await self.kill()
        await self.host.exit_lifespans()
        await self.host.disconnect()

    def disconnect(self) -> None:
        """Cut the connection to the store, so that the worker can no longer write."""
        self._store.kill()

    async def kill(self) -> list[ActiveRun]:
        """Stop as if the process had been killed, and return the runs that were active. The worker can no longer write.

        Coroutines of agents are cancelled, because Python has no other way to end them. A function in a thread
        continues until it returns, and its result is dropped.
        """
        self.disconnect()
        await self.host.leases.stop()
        await self.host.runs.aclose()
        killed_runs = list(self.active)
        for active in killed_runs:
            if active.run is not None and active.run.claimed:
                active.run.mark_lost()
            if active.is_in_thread or not active.is_claimed:
                active.performing.cancel()
        if killed_runs:
            await asyncio.wait({active.performing for active in killed_runs})
        return killed_runs

    def execute(self, agent: Agent, ref: RunRef, options: RunOptions) -> None:
        """Begin a run, like a worker that has received the message of the run."""
        if options.call is not None:
            calling = self._loop.create_task(self._call_task(agent, ref, options))
            active = ActiveRun(ref, None, calling, is_in_thread=True)
        else:
            run, performing = begin_run(self.host, agent, ref, CeleryLimits(), retries=options.retries)
            active = ActiveRun(ref, run, self._loop.create_task(performing))
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
        run, performing = begin_run(self.host, agent, ref, celery, call, emitter=emitter)
        for active in tuple(self.active):
            if active.ref == ref:
                active.run = run
        return call.lend_thread(asyncio.run_coroutine_threadsafe(performing, self._loop))

    async def _call_task(self, agent: Agent, ref: RunRef, options: RunOptions) -> None:
        """Call a plain Celery task in a thread, as Celery's thread pool does."""
        assert options.call is not None
        task, call, return_future = agent.code, options.call, self._loop.create_future()
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
                    self._loop.call_soon_threadsafe(settle, return_future, None, None)

        threading.Thread(target=work, name=f"a2a-simulated-{ref.name}", daemon=True).start()
        await return_future
