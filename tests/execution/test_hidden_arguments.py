"""Arguments that a client sends to a plain task. They are in the body of the Celery message, but not in its headers or
in logs.

A client's text that an agent quotes in an error cannot start a line of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError
from celery import Celery, Task
from celery.exceptions import Retry

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import RUN_HEADER, Call, RunOptions
from a2a_celery.execution.plain_tasks.threaded_call import CURRENT
from a2a_celery.execution.process.shutdown_requeuer import ShutdownRequeuer
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, request

from .local_agents import local_agents

PRIVATE = "a private word"


def test_a_retry_shows_none_of_its_arguments() -> None:
    """Celery itself publishes the message of a retry."""
    celery = Celery(broker="memory://", set_as_current=False)
    celery.conf.task_default_queue = "hidden-arguments"

    @celery.task(bind=True, shared=False)
    def flaky(self: Task, text: str) -> None:
        raise self.retry(countdown=60)

    a2a = A2A(celery)
    a2a.expose(flaky)
    a2a.worker()
    task = celery.tasks[flaky.name]
    task.push_request(
        id="t.1", args=(), kwargs={"text": PRIVATE}, called_directly=False, retries=0, headers={RUN_HEADER: True}
    )
    running: Any = SimpleNamespace(task=task)
    token = CURRENT.set(running)
    try:
        with pytest.raises(Retry):
            flaky(PRIVATE)
    finally:
        CURRENT.reset(token)
        task.pop_request()

    with celery.connection_for_read() as connection:
        message = connection.default_channel.basic_get("hidden-arguments")
    assert message is not None
    assert PRIVATE not in json.dumps(message.headers)
    assert PRIVATE in json.dumps(message.decode()), "the worker needs it"


async def test_a_run_that_is_returned_shows_none_of_its_arguments(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    options = RunOptions(call=Call("tasks.shout", {"text": PRIVATE})).to_json()
    message_request = request(task_id="t", context_id=CONTEXT)
    await store.run(
        create_task(keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=RETENTION, options=options)
    )
    publications: list[tuple[Any, ...]] = []

    class Broker:
        async def publish_async(self, *arguments: Any) -> None:
            publications.append(arguments)

    settings = Settings(store_url=redis_server.store_url, key_prefix=keys.prefix)
    requeuer = ShutdownRequeuer(lambda: settings, Broker)  # type: ignore[arg-type]
    caplog.set_level(logging.DEBUG, logger="a2a_celery")

    requeuer.give_up("t.1", worker_pid=None)
    await asyncio.to_thread(requeuer.wait)

    assert publications == [(ANN.agent, RunRef("t", 2), RunOptions.from_json(options))]
    assert "t.1 is requeued" in caplog.text
    assert PRIVATE not in caplog.text


async def test_the_text_of_a_refused_message_is_one_line_in_the_log(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="a2a_celery")
    async with local_agents(store, keys, redis_server.store_url) as agents:

        @agents.a2a.agent("cities", description="Knows cities.")
        async def cities(turn: Turn) -> str:
            raise InvalidParamsError(f"no city {turn.text}")

        task = await agents.play("cities", "x\n2026-11-25 12:00:00 WARNING forged" + "y" * 10_000)

    assert task.status.message.parts[0].text.startswith("no city x\n2026")
    [line] = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "refused the message" in text]
    assert "\n" not in line
    assert len(line) < 1200
