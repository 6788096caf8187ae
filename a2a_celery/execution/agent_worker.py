"""Worker side of an app: the Celery tasks of its agents, signal receivers, and the state of each process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from celery import Celery

from ..agents import Agent
from ..dispatch import Publisher, guard_workers
from ..dispatch.connection import guard
from ..hooks import Hooks
from ..settings import Settings
from .agent_caller import AgentCaller
from .celery import (
    announcer,
    reconnect,
    remote_control,  # noqa: F401  it registers Celery's inspect command a2a_report
    signals,
    start_check,
)
from .celery.agent_task import register_entry
from .plain_tasks.exposed_task import prepare_task
from .process import forced_stop, prefetched, preload, worker_process
from .process.forced_stop import RunEnder
from .process.shutdown_requeuer import ShutdownRequeuer
from .process.thread_cleanup import thread_cleanup_of
from .process.worker_process import Installed, Lifespan, WorkerProcess, install

logger = logging.getLogger(__name__)


P = TypeVar("P")


class AgentWorker:
    """Agents of `app` in its workers.

    Attributes:
        simulated: Function that returns the worker process for the next call of a plain Celery task in a simulation
            (``a2a_celery.testing``), or None outside a simulation.
    """

    def __init__(
        self,
        app: Celery,
        agents: Mapping[str, Agent],
        settings: Callable[[], Settings],
        publisher: Callable[[], Publisher],
        thread_cleanups: Sequence[Callable[[], object]],
        lifespans: Sequence[Lifespan] = (),
        hooks: Hooks | None = None,
        calls: Callable[[WorkerProcess], AgentCaller] | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._publisher = publisher
        self._thread_cleanups = thread_cleanups
        self._lifespans = lifespans
        self._hooks = hooks or Hooks()
        self._calls = calls
        self.simulated: Callable[[], WorkerProcess] | None = None
        self._processes: dict[int, WorkerProcess] = {}
        # One lock per process, because a lock that is held during a fork stays locked in the child.
        self._process_locks: dict[int, Lock] = {}
        self._ender = RunEnder(settings)
        self._handing_back = ShutdownRequeuer(settings, publisher)
        install(
            app,
            Installed(settings, agents, self._ender, self._handing_back, self.close, self._hooks),
            signals.RECEIVERS,
            start_check.RECEIVERS,
            preload.RECEIVERS,
            worker_process.RECEIVERS,
            prefetched.RECEIVERS,
            announcer.RECEIVERS,
        )
        forced_stop.connect(app)
        guard_workers(app)
        reconnect.connect(app)
        for agent in agents.values():
            self.add(agent)

    def add(self, agent: Agent) -> None:
        """Make Celery run `agent`, as a separate task or as the plain task that the agent exposes."""
        if agent.kind == "task":
            prepare_task(agent, self.process, self._stop_here, self._ender, self._handing_back)
        else:
            register_entry(self._app, agent, self.process, self._stop_here, self._ender, self._handing_back)

    def guard_broker(self) -> None:
        """Guard the broker connection of a worker that is about to connect; see `broker_guards`."""
        try:
            guard(self._app)
        except Exception:
            logger.exception("the worker's broker connection was not guarded")

    def check_start(self, worker: Any) -> None:
        """Check whether `worker` can start; see `start_check`."""
        start_check.worker_starts(sender=worker)

    def process(self) -> WorkerProcess:
        """Return the state of this worker process, which its first run creates, and therefore never before a fork."""
        if self.simulated is not None:
            return self.simulated()
        pid = os.getpid()
        if pid not in self._processes:
            with self._process_locks.setdefault(pid, Lock()):
                if pid not in self._processes:
                    self._processes[pid] = self.new_process(WorkerProcess)
        return self._processes[pid]

    def new_process(self, make: Callable[..., P]) -> P:
        """Return a worker process that `make`, a class or function with the arguments of `WorkerProcess`, creates."""
        cleanup = thread_cleanup_of(self._app, self._thread_cleanups)
        return make(self._settings(), self._publisher(), cleanup, self._lifespans, self._hooks, self._calls)

    def close(self) -> None:
        """Exit the lifespans of this process if it has run an agent."""
        process = self._processes.get(os.getpid())
        if process is not None:
            process.close()

    def _stop_here(self, celery_id: str) -> None:
        """Stop a run of this process if it has begun. Signal handlers call this method, so it takes no lock."""
        process = self._processes.get(os.getpid())
        if process is not None:
            process.stop(celery_id)
