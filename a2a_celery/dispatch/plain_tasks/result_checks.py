"""Checks whether watchers can read the result backend, and the results of exposed tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from celery import Celery

from ...agents import Agent

logger = logging.getLogger(__name__)


def unreadable_results(app: Celery) -> str | None:
    """Return the reason why watchers cannot read the results of `app`, with a remedy. Return None if watchers can read
    the results."""
    if app.conf.task_always_eager and not app.conf.task_store_eager_result:
        return (
            "task_always_eager leaves results in the process that has called the task: set it to False in workers, or "
            "task_store_eager_result to True"
        )
    return unreadable_backend(app)


def unreadable_backend(app: Celery) -> str | None:
    """Return the reason why watchers cannot read the result backend of `app`, with a remedy, or None."""
    remedy = "set result_backend to one that all processes can read, such as Redis"
    if _backend_scheme(app) == "disabled":
        return f"there is no result backend, so nothing is stored: {remedy}"
    if _backend_scheme(app) == "rpc":
        return f"the result backend rpc:// sends a result only to the process that has called the task: {remedy}"
    return None


LOST_RESULTS = (
    "a task that begins a chain, group or chord fails, and no watcher knows how runs end on a worker without this "
    "package, which does not claim runs: their code is executed, and their tasks are FAILED"
)
"""Consequence of results that watchers cannot read."""


def results_problem(app: Celery, agents: Iterable[Agent]) -> str:
    """Return the reason why watchers cannot read the results of exposed tasks, with the consequence, or ""."""
    tasks = {agent.name: agent.code for agent in agents if agent.kind == "task"}
    if tasks and (problem := unreadable_results(app)):
        return f"results of exposed tasks ({', '.join(tasks)}): {problem}; otherwise, {LOST_RESULTS}"
    if ignoring := ", ".join(name for name, task in tasks.items() if task.ignore_result):
        return (
            f"results of exposed tasks ({ignoring}) are ignored by ignore_result or task_ignore_result; {LOST_RESULTS}"
        )
    return ""


def report_unreadable_results(app: Celery, agents: Iterable[Agent]) -> None:
    """Log a warning if watchers cannot read the results of exposed tasks."""
    if problem := results_problem(app, agents):
        logger.warning("%s", problem)


SUBSCRIBED = ("redis", "rediss", "redis+socket", "sentinel")
"""Schemes of result backends that notify watchers of results."""


def is_polled(app: Celery) -> bool:
    """Return True if watchers must poll the result backend of `app`. Without a readable result backend, return
    False."""
    return _backend_scheme(app) not in (*SUBSCRIBED, "disabled", "rpc")


def _backend_scheme(app: Celery) -> str:
    """Return the scheme of the result backend, which this process may lack the library to load."""
    return str(app.conf.result_backend or "disabled").partition(":")[0]
