"""App of `plain_tasks` whose workers do not write retries to the store."""

from __future__ import annotations

from typing import Any

from celery import Task

from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.store.runs.commands import RunLost
from tests.support.agents import plain_tasks  # noqa: F401 - its tasks
from tests.support.agents.basic import a2a, app


@app.task(bind=True, max_retries=3)
def hours_later(self: Task) -> str:
    """Request a retry after an hour, which is longer than any test runs."""
    raise self.retry(countdown=3600)


a2a.expose(hours_later)


async def _release(self: RunEventQueue, *_: Any, **__: Any) -> RunLost:
    await self.abandon()
    return RunLost()


setattr(RunEventQueue, "release", _release)  # noqa: B010
