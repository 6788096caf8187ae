"""Garbage of failed runs. No traceback is left to the cycle collector, so that failures do not increase a worker's
memory."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task
from kombu import Message

from a2a_celery import A2A, Turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch.queues import fleet_headers
from a2a_celery.execution.celery.async_tracer import AsyncTaskCall
from a2a_celery.execution.celery.request import RunRequest
from a2a_celery.features.steps.journal import RunJournal
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.garbage import cyclic_garbage
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, request

from .scene import perform_run

RUNS = 3
ROUNDS = 3
"""Number of rounds. A first import in another thread, or a timer, leaves garbage in one round. A run that leaks would
leave garbage in each round."""

MAX_BYTES = 8 * 1024
"""Maximum garbage of one run in bytes. A traceback that Celery has copied is more than ten times as large."""


@pytest.fixture(autouse=True)
def no_logging() -> Iterator[None]:
    """Disable logging, because pytest keeps log records and therefore their tracebacks."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def a2a(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[A2A]:
    """App with agents that fail in different ways."""
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix, task_ignore_result=True)
    a2a = A2A(app)

    @a2a.agent("awaits", description="Fails.")
    async def awaits(turn: Turn) -> None:
        raise ValueError("no")

    @a2a.agent("yields", description="Fails.")
    async def yields(turn: Turn) -> AsyncIterator[str]:
        yield "so far"
        raise ValueError("no")

    @a2a.agent("threaded", description="Fails.")
    def fail_in_thread(turn: Turn) -> None:
        raise ValueError("no")

    @a2a.agent("threaded-yields", description="Fails.")
    def threaded_yields(turn: Turn) -> Iterator[str]:
        yield "so far"
        raise ValueError("no")

    async def fail() -> None:
        raise ValueError("no")

    @a2a.agent("steps", description="Fails in a step.")
    async def steps(turn: Turn) -> None:
        with suppress(ValueError):
            await turn.step("fail", fail)
        await asyncio.gather(turn.step("wait", asyncio.sleep, 0), turn.step("fail", fail))

    @a2a.agent("threaded-steps", description="Fails in a step.")
    def threaded_steps(turn: Turn) -> None:
        def fail_in_thread() -> None:
            raise ValueError("no")

        turn.blocking.step("fail", fail_in_thread)

    @a2a.agent("records", description="Records a result.")
    async def records(turn: Turn) -> None:
        await turn.step("succeed", asyncio.sleep, 0, "x")

    @a2a.agent("retries", description="Fails for now.", autoretry_for=(ValueError,), default_retry_delay=0)
    async def retries(turn: Turn) -> None:
        raise ValueError("no")

    @a2a.agent("asks-for-a-retry", description="Fails for now.")
    async def asks_for_a_retry(turn: Turn) -> None:
        try:
            raise ValueError("no")
        except ValueError as error:
            raise turn.retry(exc=error, countdown=0) from error

    @app.task(name="fails-plainly", shared=False)
    def plain(text: str) -> None:
        raise ValueError("no")

    a2a.expose(plain)
    worker = a2a.worker()
    yield a2a
    await asyncio.to_thread(worker.close)


async def create(store: AsyncStore, keys: Keys) -> str:
    """Create a task and return the Celery id of its first run."""
    task_id = uuid4().hex
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, task_id, CONTEXT, request(), caller=caller, retention=RETENTION))
    return f"{task_id}.1"


@pytest.mark.parametrize(
    "agent",
    [
        "awaits",
        "yields",
        "threaded",
        "threaded-yields",
        "steps",
        "threaded-steps",
        "retries",
        "asks-for-a-retry",
        "fails-plainly",
    ],
)
async def test_a_failed_run_leaves_no_traceback(a2a: A2A, store: AsyncStore, keys: Keys, agent: str) -> None:
    is_plain = agent == "fails-plainly"
    task: Task = a2a.celery.tasks[agent if is_plain else f"a2a.{agent}"]

    def perform(celery_id: str) -> Any:
        task_id, _, run = celery_id.partition(".")
        return perform_run(task, celery_id, "x") if is_plain else perform_run(task, celery_id, task_id, int(run))

    await asyncio.to_thread(perform, await create(store, keys))  # so that later runs import no modules
    rounds = []
    for _ in range(ROUNDS):
        runs = [await create(store, keys) for _ in range(RUNS)]
        with cyclic_garbage() as garbage:
            for celery_id in runs:
                result = await asyncio.to_thread(perform, celery_id)
                assert result.info.state == ("RETRY" if "retr" in agent else "FAILURE")
        rounds.append(garbage.bytes / RUNS)

    assert min(rounds) < MAX_BYTES


async def test_a_run_that_has_ended_frees_its_recorded_results(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    task: Task = a2a.celery.tasks["a2a.records"]
    runs = [await create(store, keys) for _ in range(RUNS)]
    gc.collect()
    gc.disable()
    try:
        for celery_id in runs:
            task_id, _, run = celery_id.partition(".")
            await asyncio.to_thread(perform_run, task, celery_id, task_id, int(run))

        assert [journal for journal in gc.get_objects() if isinstance(journal, RunJournal)] == []
    finally:
        gc.enable()


async def test_a_failed_run_on_the_asyncio_pool_leaves_no_traceback(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    task: Task = a2a.celery.tasks["a2a.awaits"]
    failures: list[bool] = []

    def call(celery_id: str) -> AsyncTaskCall:
        task_id, _, run = celery_id.partition(".")
        headers = {"id": celery_id, "task": task.name, "ignore_result": None, **fleet_headers(keys.prefix)}
        body = json.dumps([[task_id, int(run)], {}, {}]).encode()
        message = Message(body, headers=headers, content_type="application/json", content_encoding="utf-8")
        run_request = RunRequest(message, app=a2a.celery, task=task)
        run_request.on_success = lambda ended: failures.append(ended.failed)
        return AsyncTaskCall(run_request, task.runs_in().loop)

    def perform(call: AsyncTaskCall) -> None:
        asyncio.run_coroutine_threadsafe(call.make(), task.runs_in().loop).result(30)

    await asyncio.to_thread(perform, call(await create(store, keys)))
    rounds = []
    for _ in range(ROUNDS):
        calls = [call(await create(store, keys)) for _ in range(RUNS)]
        with cyclic_garbage() as garbage:
            while calls:
                await asyncio.to_thread(perform, calls.pop())
        rounds.append(garbage.bytes / RUNS)

    assert failures == [True] * (ROUNDS * RUNS + 1)
    assert min(rounds) < MAX_BYTES
