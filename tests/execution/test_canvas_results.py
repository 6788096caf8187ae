"""Canvases of exposed tasks. A canvas whose result no watcher could read fails the task when the canvas starts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group

from a2a_celery import A2A
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch.plain_tasks.canvases import Canvas, CanvasResult
from a2a_celery.lifecycle.outcomes import OUT_OF_TIME, Failure
from a2a_celery.lifecycle.states import FAILED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request

from .scene import perform_run

FORMS = ("task", "chain", "signature", "replaced", "group", "chord", "chain to chord", "sequence of groups")


@pytest.fixture
def app(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> Iterator[Celery]:
    """App with a task that starts canvases in several forms. No worker executes the canvases."""
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(
        result_backend=redis_server.broker_url, a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix
    )

    @app.task(shared=False, name="add")
    def add(*numbers: int) -> None: ...

    @app.task(shared=False, name="keeps_result", ignore_result=False)
    def keeps_result(*numbers: int) -> None: ...

    @app.task(shared=False, name="ignores", ignore_result=True)
    def ignores(*numbers: int) -> None: ...

    @app.task(bind=True, shared=False)
    def canvas(self: Task, form: str, first: str = "add", last: str = "add") -> Any:
        start, end = app.tasks[first].s(1), app.tasks[last].s(2)
        match form:
            case "task":
                return end.apply_async()
            case "chain":
                return chain(start, end).apply_async()
            case "signature":
                return chain(start, end)
            case "replaced":
                return self.replace(chain(start, end))
            case "group":
                return group(start, end).apply_async()
            case "chord":
                return chord([start, start.clone()], end).apply_async()
            case "chain to chord":
                return chain(start, group(start.clone(), start.clone()), end).apply_async()
            case "sequence of groups":
                return chain(start, group(start.clone(), end)).apply_async()

    A2A(app).expose(canvas, name="canvas")
    yield app
    app.close()


async def state_of_canvas(app: Celery, store: AsyncStore, keys: Keys, form: str, **tasks: str) -> Any:
    """Return the state of an A2A task after its Celery task has started a canvas."""
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, request(), caller=caller, retention=RETENTION))
    a2a = A2A.of(app)
    worker = a2a.worker()
    await asyncio.to_thread(perform_run, a2a.agents["canvas"].code, "t.1", form=form, **tasks)
    await asyncio.to_thread(worker.close)
    return (await Seeds(store, keys).states("t"))[-1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("conf", "remedy"),
    [
        ({"task_ignore_result": True}, "task 'add' ignores its result, .*: set ignore_result=False on it"),
        ({"result_backend": "rpc://"}, "the result backend rpc:// .*: set result_backend to one that all processes"),
        ({"result_backend": None}, "there is no result backend, .*: set result_backend to one that all processes"),
        ({"task_always_eager": True}, "task_always_eager .*: set it to False in workers, or task_store_eager_result"),
    ],
    ids=["ignored", "rpc", "disabled", "eager"],
)
async def test_a_canvas_without_a_readable_result_is_refused(
    app: Celery,
    store: AsyncStore,
    keys: Keys,
    form: str,
    conf: dict[str, Any],
    remedy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.conf.update(conf)
    if "result_backend" in conf and "chord" in form:
        remedy = "chords"  # Celery itself rejects a chord

    with caplog.at_level(logging.WARNING):
        assert await state_of_canvas(app, store, keys, form) == FAILED

    assert re.search(remedy, caplog.text)


@pytest.mark.parametrize("form", FORMS)
async def test_a_canvas_whose_last_task_stores_its_result_is_accepted(
    app: Celery, store: AsyncStore, keys: Keys, form: str
) -> None:
    app.conf.task_ignore_result = True
    first = "keeps_result" if form in ("group", "sequence of groups") else "add"

    assert await state_of_canvas(app, store, keys, form, first=first, last="keeps_result") == WORKING


async def test_a_last_task_with_its_own_ignore_result_is_refused(app: Celery, store: AsyncStore, keys: Keys) -> None:
    assert await state_of_canvas(app, store, keys, "chain", last="ignores") == FAILED


@pytest.mark.parametrize(
    ("remaining", "expected"), [(timedelta(), CanvasResult(Failure(OUT_OF_TIME))), (timedelta(hours=1), None)]
)
def test_a_canvas_without_a_result_fails_after_its_time_limit(
    app: Celery, remaining: timedelta, expected: CanvasResult | None
) -> None:
    unfinished = app.AsyncResult("unfinished")

    assert Canvas(unfinished.as_tuple(), datetime.now(UTC) + remaining).poll(app) == expected
