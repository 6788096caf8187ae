"""Agents of `endings` whose runs cannot settle tasks, so that only receivers of Celery's signals settle them.

For the agent "count", Celery fails before it calls the agent. Celery then sends ``task_internal_error``. In pools in
which Celery traces the run, Celery also sends ``task_failure``.
"""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.worker.request import Request

from a2a_celery.execution.celery.request import RunRequest
from a2a_celery.execution.run import Run
from tests.support.agents import endings  # noqa: F401 - its agents
from tests.support.agents.basic import app

for method in ("on_failure", "on_timeout", "terminate", "revoked"):
    setattr(RunRequest, method, getattr(Request, method))


async def _do_not_settle(self: Run, claim: Any, events: Any, outcome: Any) -> None:
    await events.abandon()
    raise RuntimeError("a secret")


setattr(Run, "_settle", _do_not_settle)  # noqa: B010


on_task_init = app.loader.on_task_init


def _fail_for_count(task_id: str, task: Task) -> None:
    if task.name == "a2a.count":
        raise RuntimeError("a secret")
    on_task_init(task_id, task)


setattr(app.loader, "on_task_init", _fail_for_count)  # noqa: B010
