"""App whose worker runs in the test process. The tests call Celery tasks in the same way as a thread of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from a2a.types import Task
from celery import Celery

from a2a_celery import A2A
from a2a_celery.caller import Caller
from a2a_celery.clock import SYSTEM_CLOCK, Clock
from a2a_celery.execution.process.forced_stop import new_runner_id
from a2a_celery.execution.process.worker_process import WorkerProcess
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request
from tests.support.store.suspensions import Suspensions

from .scene import perform_run


class LocalAgents:
    """Agents of the app `a2a` in the test process. A test adds them before the first run."""

    def __init__(self, a2a: A2A, store: AsyncStore, keys: Keys) -> None:
        self.a2a, self.store, self.keys = a2a, store, keys
        self.seeds = Seeds(store, keys)
        self._process: WorkerProcess | None = None

    def perform_with(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Perform the runs with `clock`. Call this method before the first run."""
        worker = self.a2a.worker()
        process = self._process = WorkerProcess(partial(worker.new_host, new_runner_id(""), clock=clock))
        worker.simulated = lambda: process

    def close(self) -> None:
        """Close the worker process."""
        worker = self.a2a.worker()
        worker.close()
        worker.simulated = None
        if self._process is not None:
            self._process.close()

    async def create(
        self, task_id: str = "t", text: str = "hello", context_id: str = CONTEXT, *, serialize_context: bool = False
    ) -> str:
        """Create a client's task that waits for a worker. Return the task's id."""
        message_request, caller = request(text, task_id, context_id), Caller(user="ann").to_json()
        await self.store.run(
            create_task(
                self.keys,
                ANN,
                task_id,
                context_id,
                message_request,
                caller=caller,
                retention=RETENTION,
                serialize_context=serialize_context,
            )
        )
        return task_id

    async def perform(self, agent: str, task_id: str, run: int = 1) -> Any:
        """Execute a run of the task, and return Celery's result with its state."""
        entry = self.a2a.celery.tasks[f"a2a.{agent}"]
        return await asyncio.to_thread(perform_run, entry, f"{task_id}.{run}", task_id, run)

    async def play(self, agent: str, text: str = "hello") -> Task:
        """Create a task of `agent`, perform its run and return the task."""
        await self.perform(agent, await self.create(text=text))
        return await self.seeds.task("t")


@asynccontextmanager
async def local_agents(store: AsyncStore, keys: Keys, url: str, **settings: Any) -> AsyncIterator[LocalAgents]:
    """Yield an app without agents, and close its worker process after the block."""
    app = Celery("here", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url=url, a2a_key_prefix=keys.prefix, **settings)
    a2a = A2A(app)
    agents = LocalAgents(a2a, store, keys)
    a2a.worker()
    yield agents
    await asyncio.to_thread(agents.close)


class SuspendableAgents(LocalAgents):
    """Agents of the app `a2a` in the test process, with their suspended runs."""

    def __init__(self, a2a: A2A, store: AsyncStore, keys: Keys) -> None:
        super().__init__(a2a, store, keys)
        self.suspensions = Suspensions(self.seeds)

    async def wake(self, agent: str, run: int) -> str:
        """Make run `run` due, and perform it. Return the text of the task's artifacts."""
        await self.suspensions.make_due(RunRef("t", run))
        assert await self.suspensions.resume_runs() == 1
        return await self.go_on(agent, run)

    async def go_on(self, agent: str, run: int) -> str:
        """Execute run `run`. Return the text of the task's artifacts."""
        await self.perform(agent, "t", run)
        task = await self.seeds.task("t")
        return "|".join("".join(part.text for part in artifact.parts) for artifact in task.artifacts)


@asynccontextmanager
async def suspendable_agents(a2a: A2A, store: AsyncStore, keys: Keys, url: str) -> AsyncIterator[SuspendableAgents]:
    """Yield the agents of `a2a`, and close their worker process after the block."""
    a2a.celery.conf.update(a2a_store_url=url, a2a_key_prefix=keys.prefix)
    agents = SuspendableAgents(a2a, store, keys)
    a2a.worker()
    yield agents
    await asyncio.to_thread(agents.close)
