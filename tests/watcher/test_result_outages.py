"""Result backends that fail: connections of Django's ORM that a restart of the database closes, and repeated errors."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from celery import Celery, states

from a2a_celery.dispatch import Call, Canvas, RunOptions, RunReports
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.publication import mark_published
from a2a_celery.store.tasks.commands import read_task
from a2a_celery.watcher.dispatcher import Dispatcher
from a2a_celery.watcher.plain_tasks.canvas_finalizer import CanvasFinalizer
from a2a_celery.watcher.plain_tasks.results import Results
from tests.support.clocks import ManualClock
from tests.support.django_orm import query
from tests.support.processes.databases import Postgres
from tests.support.store.dispatcher_setup import DUE_NOW_US, Broker, create_operation
from tests.support.store.seeds import Seeds
from tests.watcher.test_canvases import delegate_to

REF = RunRef("t", 1)
PLAIN = RunOptions(call=Call("tasks.resize", {})).to_json()


class OrmBackend:
    """Result backend that reads its results with Django's ORM, like django-db."""

    def get_task_meta(self, name: str) -> dict[str, Any]:
        query()
        return {"status": states.STARTED, "result": None}


class OrmApp:
    """App with this result backend."""

    backend = OrmBackend()


async def test_a_look_after_a_restart_of_the_database_succeeds(
    store: AsyncStore,
    keys: Keys,
    django_database: Postgres,
) -> None:
    """Celery closes Django's old connections in the threads of workers only."""
    await store.run(create_operation(keys, REF.task_id, PLAIN))
    results = Results(store, keys, OrmApp())  # type: ignore[arg-type]
    assert await results.observe(REF)

    await asyncio.to_thread(django_database.stop)
    with pytest.raises(Exception, match=r"(?i)connection"):
        await results.observe(REF)
    await asyncio.to_thread(django_database.start)

    assert await results.observe(REF)


def celery_app() -> Celery:
    """Return an app whose result backend all threads share."""
    app = Celery(backend="cache+memory://", set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


async def test_a_failing_result_backend_is_logged_once_a_minute(
    store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    clock, app = ManualClock(), celery_app()
    errors = ["connection already closed"]

    def get_task_meta(name: str, **_: Any) -> Any:
        raise OSError(errors[-1])

    app.backend.get_task_meta = get_task_meta
    await store.run(create_operation(keys, REF.task_id, PLAIN))
    results = Results(store, keys, app)
    results.find = AsyncMock(return_value=RunReports())  # type: ignore[method-assign]  # no worker replies
    watcher = Dispatcher(store, keys, Broker(), 60, results, clock=clock)  # type: ignore[arg-type]

    async def log_lines(ticks: int) -> int:
        caplog.clear()
        for _ in range(ticks):
            await store.run(mark_published(keys, REF, delay_us=DUE_NOW_US))
            await watcher.tick()
        return sum("the result backend does not reply" in record.getMessage() for record in caplog.records)

    assert await log_lines(5) == 1
    assert await log_lines(5) == 0
    errors.append("another reason")
    assert await log_lines(5) == 1
    clock.advance(60)
    assert await log_lines(5) == 1


async def test_a_canvas_that_cannot_be_read_is_logged_once_a_minute(
    store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    clock, seeds, app = ManualClock(), Seeds(store, keys), celery_app()
    until = datetime.now(UTC) + timedelta(hours=1)
    task_ids = [await delegate_to(seeds, keys, Canvas(((f"c{n}", None), None), until).to_json()) for n in range(3)]
    results = Results(store, keys, app)
    finalizer = CanvasFinalizer(store, keys, results, clock)
    get_meta, outages = app.backend.get_task_meta, [True]

    def get_task_meta(name: str, **options: Any) -> Any:
        if outages:
            raise OSError("connection already closed")
        return get_meta(name, **options)

    app.backend.get_task_meta = get_task_meta
    caplog.set_level(logging.INFO)

    async def tick() -> None:
        for task_id in task_ids:
            await store.redis.zadd(keys.canvases, {f"{task_id}.1": 1})
        await finalizer.tick()

    for _ in range(5):
        await tick()
    assert len([record for record in caplog.records if "could not read the canvas" in record.getMessage()]) == 1
    clock.advance(60)
    await tick()
    assert len([record for record in caplog.records if "could not read the canvas" in record.getMessage()]) == 2

    outages.clear()
    for n in range(3):
        app.backend.mark_as_done(f"c{n}", "done")
    await tick()
    for task_id in task_ids:
        stored_task = await store.run(read_task(keys, None, task_id))
        assert stored_task is not None
        assert stored_task[0].status.state == COMPLETED
