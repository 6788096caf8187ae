"""Celery task that runs an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, Task

from ...agents import Agent
from ...dispatch import entry_name
from ..limits import CeleryLimits
from ..process.forced_stop import RunEnder
from ..process.shutdown_requeuer import ShutdownRequeuer
from ..process.worker_process import WorkerProcess
from .async_tracer import AWAITING_CALL, AsyncTaskCall, Begun
from .request import RunFailed, RunRequest, celery_result


def register_entry(
    app: Celery,
    agent: Agent,
    process: Callable[[str | None], WorkerProcess],
    stop_here: Callable[[str], None],
    ender: RunEnder,
    requeuer: ShutdownRequeuer,
) -> Task:
    """Register `agent` with Celery as ``a2a.<agent>``.

    Messages are acknowledged early, which is Celery's default, because the store has the open runs.

    Args:
        app: Celery app.
        agent: Agent to register.
        process: Function that returns the state of the current process, by the node name of its worker.
        stop_here: Function that stops a run in this process; see `RunRequest`.
        ender: Writer of the outcomes of runs that cannot write their own outcome; see `RunRequest`.
        requeuer: Requeuer of runs at shutdown; see `RunRequest`.

    Returns:
        The Celery task.
    """

    def run_agent(self: Task, task_id: str, run: int) -> str:
        call: AsyncTaskCall | None = self.request.get(AWAITING_CALL)
        if call is not None:
            return celery_result(call.perform(*self.begin_run(task_id, run)))
        worker_process = process(self.request.hostname)
        emitter, retries = worker_process.events.emitter(self), int(self.request.retries or 0)
        return celery_result(
            worker_process.run(agent, task_id, run, celery_limits(self), emitter=emitter, retries=retries)
        )

    def begin_run(self: Task, task_id: str, run: int) -> Begun:
        worker_process = process(self.request.hostname)
        emitter, retries = worker_process.events.emitter(self), int(self.request.retries or 0)
        return worker_process.begin(agent, task_id, run, celery_limits(self), emitter=emitter, retries=retries)

    run_agent.__doc__ = f"Run {agent.name!r} for an A2A task. Arguments: the task's id and the number of the run."
    options: dict[str, Any] = {
        "name": entry_name(agent.name),
        "bind": True,
        "shared": False,  # other apps in this process have other agents
        # The store has the results of runs, and an unavailable result backend must not block a worker.
        "ignore_result": True,
        "store_errors_even_if_ignored": False,
        "acks_late": False,
        "max_retries": 0,
        "throws": (RunFailed,),  # the traceback contains no useful information
        "Request": RunRequest,
        "ender": ender,
        "requeuer": requeuer,
        "stop_here": staticmethod(stop_here),
        # used by pools that await calls; see `async_tracer`
        "runs_in": staticmethod(process),
        "begin_run": begin_run,
    }
    return app.task(**options)(run_agent)


def celery_limits(task: Task) -> CeleryLimits:
    """Return Celery's limits for the current run of `task`, from its message or, if the message sets none, from the
    configuration."""
    hard, soft = task.request.timelimit or (None, None)
    return CeleryLimits(soft or task.soft_time_limit, hard or task.time_limit)
