"""Worker side of an app: the Celery tasks of its agents, signal receivers, and the state of each process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from celery import Celery
from celery.app import trace as celery_trace

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher, entry_name, fleet_of, guard_workers
from ..dispatch.connection import guard, skip_run_acks
from ..errors import ConfigError
from ..features import AppFeature
from ..lifecycle.references import RunRef
from ..settings import Settings
from ..store import AsyncStore
from .celery import (
    announcer,
    reconnect,
    remote_control,
    signals,
    start_check,
)
from .celery.agent_task import register_entry
from .celery.request import PausedRunFilter
from .plain_tasks.exposed_task import prepare_task
from .process import forced_stop, prefetched, preload, worker_process
from .process.forced_stop import RunEnder, new_runner_id
from .process.run_host import Lifespan, RunHost
from .process.shutdown_requeuer import ShutdownRequeuer
from .process.thread_cleanup import thread_cleanup_of
from .process.worker_process import Installed, WorkerProcess, install

logger = logging.getLogger(__name__)

_PAUSED_RUNS = PausedRunFilter()
"""Filter of Celery's log. A logger contains a filter only once, so the apps of a process share the filter."""


class AgentWorker:
    """Registration of an app's agents with Celery, and the state of the current worker process.

    Attributes:
        simulated: Function that returns the worker process for the next call to a plain Celery task in a simulation
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
        app_features: Sequence[AppFeature] = (),
    ) -> None:
        self._app = app
        self._settings = settings
        self._publisher = publisher
        self._thread_cleanups = thread_cleanups
        self._lifespans = lifespans
        self._app_features = app_features
        self._agents = agents
        self.simulated: Callable[[], WorkerProcess] | None = None
        self._processes: dict[int, WorkerProcess] = {}
        # One lock per process, because a lock that is held during a fork stays locked in the child.
        self._process_locks: dict[int, Lock] = {}
        self._ender = RunEnder(settings)
        self._handing_back = ShutdownRequeuer(settings, publisher)
        self._entries: set[str] = set()
        install(
            app,
            Installed(settings, agents, self._ender, self._handing_back, self.close, app_features),
            signals.RECEIVERS,
            start_check.RECEIVERS,
            preload.RECEIVERS,
            worker_process.RECEIVERS,
            prefetched.RECEIVERS,
            announcer.RECEIVERS,
        )
        logging.getLogger(celery_trace.__name__).addFilter(_PAUSED_RUNS)
        forced_stop.connect(app)
        guard_workers(app)
        reconnect.connect(app)
        remote_control.connect(app)
        for agent in agents.values():
            self.add(agent)

    def add(self, agent: Agent) -> None:
        """Register `agent` with Celery, as a separate task or through the plain task that the agent exposes."""
        if agent.kind == "task":
            prepare_task(agent, self.process, self._stop_here, self._ender, self._handing_back)
        else:
            self._entries.add(entry_name(agent.name))
            register_entry(self._app, agent, self.process, self._stop_here, self._ender, self._handing_back)

    def guard_broker(self) -> None:
        """Guard the broker connection of a worker that is about to connect; see ``dispatch.connection``.

        Unless `ack_emulation` is set, unacknowledged messages of runs are recorded only in memory. Errors are logged,
        except an invalid setting, which `check_start` reports.
        """
        try:
            guard(self._app)
            settings = self._settings()
            if not settings.ack_emulation:
                skip_run_acks(self._app, partial(self._is_own_run, settings.key_prefix))
        except ConfigError:
            pass
        except Exception:
            logger.exception("could not set the timeouts of the worker's broker connection")

    def _is_own_run(self, fleet: str, message: Any) -> bool:
        """Return True if a message from the broker belongs to a run of one of the app's agents in `fleet`.

        If the message is lost, the run is recovered from the store.
        """
        headers = message.headers
        return (
            headers.get("task") in self._entries
            and RunRef.of(str(headers.get("id"))) is not None
            and fleet_of(headers) == fleet
        )

    def check_start(self, worker: Any) -> None:
        """Check whether `worker` can start; see `start_check`."""
        start_check.worker_starts(sender=worker)

    def process(self, node: str | None = None) -> WorkerProcess:
        """Return the state of this worker process, which is created at the first run and therefore after any fork.

        Args:
            node: Node name of the worker, or None if Celery does not report a name.
        """
        if self.simulated is not None:
            return self.simulated()
        pid = os.getpid()
        process = self._processes.get(pid)
        if process is None:
            with self._process_locks.setdefault(pid, Lock()):
                process = self._processes.get(pid)
                if process is None:
                    new_host = partial(self.new_host, new_runner_id(node or ""))
                    process = self._processes[pid] = WorkerProcess(new_host, uvloop=self._settings().uvloop)
        return process

    def new_host(self, runner_id: str, *, store: AsyncStore | None = None, clock: Clock = SYSTEM_CLOCK) -> RunHost:
        """Return the host of the runs of a worker process. Call this method on the event loop of the runs.

        Args:
            runner_id: Id of the worker process in the store.
            store: Client of the store, or None to create one from the settings.
            clock: Clock of the runs and their leases.
        """
        cleanup = thread_cleanup_of(self._app, self._thread_cleanups)
        return RunHost(
            self._settings(),
            self._publisher(),
            runner_id,
            cleanup,
            self._lifespans,
            self._app_features,
            self._agents,
            store=store,
            clock=clock,
        )

    def close(self) -> None:
        """Close the state of this process if it has run an agent. A further run would create a new state."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.close()

    def _stop_here(self, celery_id: str) -> None:
        """Stop the run `celery_id` if it has begun in this process. Signal handlers call this method, so it must not
        acquire a lock."""
        process = self._processes.get(os.getpid())
        if process is not None:
            process.stop(celery_id)
