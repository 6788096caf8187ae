"""Stop of a run in a worker process that has received the run's message twice."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.limits import CeleryLimits
from a2a_celery.execution.process.worker_process import WorkerProcess
from a2a_celery.lifecycle import Lost
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.seeds import ANN, CONTEXT, RETENTION, request


async def test_a_duplicate_message_does_not_prevent_the_stop_of_a_run(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    a2a, has_begun = A2A(Celery(set_as_current=False)), Event()

    @a2a.agent("works", description="Works until it is stopped.")
    async def works(turn: Turn) -> None:
        has_begun.set()
        await asyncio.sleep(600)

    publisher: Any = None
    process = WorkerProcess(Settings(store_url=redis_server.store_url, key_prefix=keys.prefix), publisher)
    message_request, caller = request(task_id="t", context_id=CONTEXT), Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, message_request, caller=caller, retention=RETENTION))

    def run() -> Any:
        return process.run(a2a.agents["works"], "t", 1, CeleryLimits())

    async with asyncio.timeout(60):
        first = asyncio.ensure_future(asyncio.to_thread(run))
        assert await asyncio.to_thread(has_begun.wait, 30)
        assert await asyncio.to_thread(run) is None, "the second message of a run that is begun"

        process.stop("t.1")

        assert await first == Lost()
    await asyncio.to_thread(process.close)
