"""The Celery task that runs an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, Task

from ..agents import Agent
from ..dispatch import entry_name
from .process import WorkerProcess


def register_entry(app: Celery, agent: Agent, process: Callable[[], WorkerProcess]) -> Task:
    """Makes `agent` known to Celery as ``a2a.<agent>``; `process` gives the state of the process a run is in.

    Acknowledged early, Celery's own default: the store knows which runs are open, the broker need not.
    """

    def run_agent(task_id: str, run: int) -> None:
        process().run(agent, task_id, run)

    run_agent.__doc__ = f"Runs {agent.name!r} for an A2A task: arguments are the task's id and the number of the run."
    options: dict[str, Any] = {
        "name": entry_name(agent.name),
        "ignore_result": True,
        "store_errors_even_if_ignored": True,
        "acks_late": False,
        "max_retries": 0,
    }
    return app.task(**options)(run_agent)
