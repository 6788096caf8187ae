"""Cleanup of connections that agents open in threads of a worker process, with a real Django project and PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.limits import CeleryLimits
from a2a_celery.execution.process.worker_process import WorkerProcess
from a2a_celery.lifecycle import Completed, Outcome
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.django_orm import open_connections, query
from tests.support.processes.databases import Postgres
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, request
from tests.support.waiting import eventually_async


class Worker:
    """Worker process of a Django project, simulated in the test process."""

    def __init__(self, url: str, store: AsyncStore, keys: Keys) -> None:
        app = Celery("project", set_as_current=False)
        app.conf.update(a2a_store_url=url, a2a_key_prefix=keys.prefix)
        self.a2a = A2A(app)
        self.store, self.keys = store, keys

    async def run(self, agent: str) -> Outcome | None:
        """Run a new task of `agent` and return its outcome."""
        task_id = uuid4().hex
        message_request, caller = request(task_id=task_id, context_id=CONTEXT), Caller(user="ann").to_json()
        await self.store.run(
            create_task(self.keys, ANN, task_id, CONTEXT, message_request, caller=caller, retention=RETENTION)
        )
        process = await asyncio.to_thread(self.process)
        return await asyncio.to_thread(process.run, self.a2a.agents[agent], task_id, 1, CeleryLimits())

    def process(self) -> WorkerProcess:
        """Return the per-process state of the worker."""
        return self.a2a.worker().process()


@pytest.fixture
async def worker(redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys) -> AsyncIterator[Worker]:
    """Worker process without agents. The garbage collector is disabled, so that it closes no connection."""
    worker = Worker(redis_server.store_url, store, keys)
    gc.disable()
    yield worker
    gc.enable()
    await asyncio.to_thread(worker.process().close)


@pytest.fixture
def project(django_database: Postgres, worker: Worker) -> Worker:
    """Worker of the Django project."""
    return worker


async def no_connection_is_open(django_database: Postgres) -> None:
    """Wait until agents have no open connection."""

    async def has_none() -> bool:
        return await asyncio.to_thread(open_connections, django_database) == 0

    await eventually_async(has_none, what="all connections are closed")


def agents(a2a: A2A) -> None:
    """Add an agent for each kind of thread in which an agent may use the ORM."""

    @a2a.agent("function")
    def function(turn: Turn) -> str:
        return str(query())

    @a2a.agent("generator")
    def generator(turn: Turn) -> Iterator[str]:
        yield str(query())
        yield str(query())

    @a2a.agent("async-orm")
    async def async_orm(turn: Turn) -> str:
        return str(await sync_to_async(query)())

    @a2a.agent("to-thread")
    async def to_thread(turn: Turn) -> str:
        return "".join(map(str, await asyncio.gather(*(asyncio.to_thread(query) for _ in range(4)))))


AGENTS = ["function", "generator", "async-orm", "to-thread"]


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_run_leaves_no_connection_open(project: Worker, django_database: Postgres, kind: str) -> None:
    agents(project.a2a)

    outcomes = [await project.run(kind) for _ in range(5)]

    assert outcomes == [Completed()] * 5
    await no_connection_is_open(django_database)


@pytest.mark.parametrize("kind", ["async-orm", "to-thread"])
async def test_runs_after_a_restart_of_the_database_complete(
    project: Worker, django_database: Postgres, kind: str
) -> None:
    agents(project.a2a)
    await project.run(kind)

    await asyncio.to_thread(django_database.stop)
    await asyncio.to_thread(django_database.start)

    assert await project.run(kind) == Completed()


async def test_a_connection_of_other_runs_is_closed_only_if_it_is_broken(
    project: Worker, django_database: Postgres
) -> None:
    agents(project.a2a)
    has_begun, may_continue = threading.Event(), threading.Event()

    @project.a2a.agent("long")
    async def wait(turn: Turn) -> str:
        backends = [await sync_to_async(backend)()]
        has_begun.set()
        await asyncio.to_thread(may_continue.wait, 60)
        backends.append(await sync_to_async(backend)())
        return "the same" if backends[0] == backends[1] else "another"

    def backend() -> int:
        from django.db import connection  # noqa: PLC0415 - as above

        connection.ensure_connection()
        return int(connection.connection.info.backend_pid)

    first = asyncio.ensure_future(project.run("long"))
    assert await asyncio.to_thread(has_begun.wait, 30)
    assert await project.run("async-orm") == Completed()
    assert open_connections(django_database) == 1, "the long run keeps its own"

    await asyncio.to_thread(django_database.stop)
    await asyncio.to_thread(django_database.start)
    assert await project.run("async-orm") != Completed(), "the connection broke under a run"
    assert await project.run("async-orm") == Completed(), "and is a new one for the next, beside the long one"
    may_continue.set()
    assert await first == Completed()
    await no_connection_is_open(django_database)


@pytest.mark.parametrize("kind", ["function", "to-thread"])
async def test_a_cleanup_is_called_in_the_thread_of_the_agent(worker: Worker, kind: str) -> None:
    """A scoped session of SQLAlchemy, for example, belongs to a thread."""
    agent_threads: list[int] = []
    cleanup_threads: list[int] = []
    worker.a2a.add_thread_cleanup(lambda: cleanup_threads.append(threading.get_ident()))

    def use() -> str:
        agent_threads.append(threading.get_ident())
        return ""

    worker.a2a.agent("function", description="Works.")(lambda turn: use())

    @worker.a2a.agent("to-thread")
    async def to_thread(turn: Turn) -> str:
        return await asyncio.to_thread(use)

    assert await worker.run(kind) == Completed()

    async def is_cleaned() -> bool:
        return agent_threads[0] in cleanup_threads

    await eventually_async(is_cleaned, what="the cleanup was called")


async def test_a_cleanup_that_fails_changes_nothing_for_the_run(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("the pool is gone")

    worker.a2a.add_thread_cleanup(fail)

    @worker.a2a.agent("to-thread")
    async def to_thread(turn: Turn) -> str:
        return await asyncio.to_thread(str, 1)

    assert await worker.run("to-thread") == Completed()
    assert "a cleanup of the threads of agents failed" in caplog.text
