"""Plain Celery tasks that serve A2A tasks, with a broker and a result backend that refuse writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from a2a.types import TaskState, TaskStatusUpdateEvent
from celery import Celery, Task
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import Reject
from redis.exceptions import ResponseError

from a2a_celery import A2A, ConfigError, current_turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, REJECTED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request

from .scene import perform_run

DELAY = 1000
"""Seconds until the retry. The delay is longer than any other delay after which a watcher would publish the run."""


class FullBackend(KeyValueStoreBackend):
    """Result backend whose server refuses writes."""

    def set(self, key: Any, value: Any) -> None:
        raise ResponseError("MISCONF Redis is configured to save RDB snapshots")

    def get(self, key: Any) -> Any:
        raise ResponseError("MISCONF Redis is configured to save RDB snapshots")


@pytest.fixture
async def a2a(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[A2A]:
    """App with exposed tasks. Its broker is unavailable, and its result backend is full."""
    app = Celery("test", broker="redis://127.0.0.1:1", backend=FullBackend, set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix, task_publish_retry=False)
    # two attempts without a delay
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}

    @app.task(bind=True, max_retries=3, shared=False)
    def later(self: Task, text: str) -> None:
        raise self.retry(countdown=DELAY)

    @app.task(autoretry_for=(ValueError,), default_retry_delay=DELAY, shared=False)
    def flaky(text: str) -> None:
        raise ValueError("not yet")

    @app.task(bind=True, shared=False)
    def begins(self: Task, text: str) -> None:
        turn = current_turn()
        assert turn is not None
        turn.blocking.artifact("finished", artifact_id="finished")
        turn.blocking.artifact("unfinished", last=False)
        raise self.retry(countdown=DELAY)

    @app.task(bind=True, shared=False)
    def refuses(self: Task, text: str) -> None:
        raise Reject("no")

    @app.task(bind=True, track_started=True, shared=False)
    def reports(self: Task, text: str) -> str:
        self.update_state(state="PROGRESS", meta={"step": 1})
        return text

    @app.task(bind=True, max_retries=3, autoretry_for=(Exception,), shared=False)
    def persists(self: Task, text: str) -> str:
        with suppress(Exception):
            self.update_state(state="PROGRESS", meta={"step": 1})
        return text

    @app.task(shared=False)
    def reads(text: str) -> str:
        turn = current_turn()
        assert turn is not None
        errors = []
        for read in (turn.blocking.poll_messages, lambda: next(turn.blocking.incoming())):
            with pytest.raises(ConfigError) as exc_info:
                read()
            errors.append(str(exc_info.value))
        return " ".join(errors)

    a2a = A2A(app)
    for task in (later, flaky, begins, refuses, reports, persists, reads):
        a2a.expose(task)
    worker = a2a.worker()
    yield a2a
    await asyncio.to_thread(worker.close)


async def perform(a2a: A2A, store: AsyncStore, keys: Keys, agent: str) -> tuple[str, Any]:
    """Run a new task of `agent`, and return the task's id and Celery's result."""
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, request(), caller=caller, retention=RETENTION))
    return "t", await asyncio.to_thread(perform_run, a2a.agents[agent].code, "t.1", text="x")


@pytest.mark.parametrize("agent", ["later", "flaky"])
async def test_a_retry_that_cannot_be_published_is_due_at_its_time(
    a2a: A2A, store: AsyncStore, keys: Keys, agent: str
) -> None:
    task_id, result = await perform(a2a, store, keys, agent)

    seeds = Seeds(store, keys)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, WORKING]
    status = (await seeds.task(task_id)).status
    assert result.info.state == "RETRY"
    due = await store.redis.zscore(keys.dispatch, RunRef(task_id, 1).name)
    assert due is not None
    delay = due / 1_000_000 - status.timestamp.seconds
    assert delay == pytest.approx(DELAY, abs=30), "a published retry has a minute more"


async def test_unfinished_artifacts_are_removed_by_a_retry(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    task_id, _ = await perform(a2a, store, keys, "begins")

    seeds = Seeds(store, keys)
    assert [artifact.artifact_id for artifact in (await seeds.task(task_id)).artifacts] == ["finished"]
    await seeds.require_consistent(task_id)


async def test_a_task_that_rejects_its_message_itself_is_rejected(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    task_id, _ = await perform(a2a, store, keys, "refuses")

    assert (await Seeds(store, keys).states(task_id))[-1] == REJECTED


async def test_a_task_learns_that_it_cannot_read_messages(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    """`expose` refuses ``on_message="steer"``."""
    _, result = await perform(a2a, store, keys, "reads")

    assert result.retval.count("Celery tasks cannot have this option") == 2


async def test_a_result_backend_that_refuses_writes_fails_no_task(a2a: A2A, store: AsyncStore, keys: Keys) -> None:
    task_id, result = await perform(a2a, store, keys, "reports")

    assert (result.info, result.retval) == (None, "x")
    assert (await Seeds(store, keys).states(task_id))[-1] == COMPLETED


@pytest.mark.parametrize(("is_lost", "state"), [(False, CANCELED), (True, WORKING)])
async def test_a_cancelled_progress_is_no_exception_of_the_task(
    a2a: A2A, store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch, is_lost: bool, state: TaskState
) -> None:
    enqueue = RunEventQueue.enqueue_event

    async def cancel(queue: RunEventQueue, event: Event) -> None:
        if not isinstance(event, TaskStatusUpdateEvent):
            return await enqueue(queue, event)
        if is_lost:
            queue.aborted.set()
        raise asyncio.CancelledError

    monkeypatch.setattr(RunEventQueue, "enqueue_event", cancel)

    task_id, result = await perform(a2a, store, keys, "persists")

    assert (await Seeds(store, keys).states(task_id))[-1] == state
    assert result.info.state == "IGNORED", "an asyncio.CancelledError would block a thread of Celery"


async def test_the_result_of_another_call_of_the_task_is_not_dropped(a2a: A2A) -> None:
    with pytest.raises(ResponseError):
        a2a.agents["reports"].code.backend.store_result("another", None, "SUCCESS")
