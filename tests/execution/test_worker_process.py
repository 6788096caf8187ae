"""Stop and cancellation of a run in a worker process, and failures that its event loop causes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from threading import Event
from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import Publisher
from a2a_celery.execution.limits import CeleryLimits
from a2a_celery.execution.process.run_host import RunHost
from a2a_celery.execution.process.worker_process import WorkerProcess
from a2a_celery.lifecycle import Canceled, Lost
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task, request_cancel
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, request
from tests.support.waiting import LIMIT

from .local_agents import local_agents


class Works:
    """Agent that works until it is stopped, and a worker process for its run "t.1"."""

    def __init__(self, settings: Settings) -> None:
        a2a, self.has_begun = A2A(Celery(set_as_current=False)), Event()

        @a2a.agent("works", description="Works until it is stopped.")
        async def works(turn: Turn) -> None:
            self.has_begun.set()
            await asyncio.sleep(600)

        publisher = Publisher(a2a.celery, {})
        self._agent = a2a.agents["works"]
        self.process = WorkerProcess(partial(RunHost, settings, publisher, "runner"))

    async def run(self) -> Any:
        """Return the outcome of the run in this process."""
        return await asyncio.to_thread(self.process.run, self._agent, "t", 1, CeleryLimits())

    async def begin(self) -> asyncio.Task[Any]:
        """Return the future outcome of the run, whose agent works."""
        run = asyncio.create_task(self.run())
        assert await asyncio.to_thread(self.has_begun.wait, LIMIT)
        return run


@pytest.fixture
async def works(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[Works]:
    """Agent whose lease and grace are longer than a test takes, so that neither ends the run."""
    works = Works(Settings(store_url=redis_server.store_url, key_prefix=keys.prefix, lease_ttl=6000, cancel_grace=600))
    message_request, caller = request(task_id="t", context_id=CONTEXT), Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, message_request, caller=caller, retention=RETENTION))
    yield works
    works.process.stop("t.1")  # if the test failed
    await asyncio.to_thread(works.process.close)


async def test_a_duplicate_message_does_not_prevent_the_stop_of_a_run(works: Works) -> None:
    first = await works.begin()
    assert await works.run() is None, "the second message of a run that is begun"

    works.process.stop("t.1")

    assert await asyncio.wait_for(first, LIMIT) == Lost()


async def test_a_cancellation_does_not_wait_for_the_next_renewal(works: Works, store: AsyncStore, keys: Keys) -> None:
    run = await works.begin()

    await store.run(request_cancel(keys, ANN, "t", CONTEXT))

    assert await asyncio.wait_for(run, LIMIT) == Canceled()


@pytest.mark.parametrize("uvloop", [True, False])
async def test_a_failure_that_uvloop_causes_names_the_setting(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture, uvloop: bool
) -> None:
    async with local_agents(store, keys, redis_server.store_url, a2a_uvloop=uvloop) as agents:

        @agents.a2a.agent("nested", description="Runs the loop again.")
        async def nested(turn: Turn) -> None:
            with closing(asyncio.sleep(0)) as coroutine:
                asyncio.get_running_loop().run_until_complete(coroutine)

        await agents.play("nested")

    assert "its agent failed" in caplog.text
    assert ("A2A_UVLOOP=off" in caplog.text) == (uvloop and find_spec("uvloop") is not None)
