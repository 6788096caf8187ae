"""Announcements of workers that Celery's remote control does not reach."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from a2a.types import AgentCard
from celery import Celery

from a2a_celery.agents import Agent
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import version_queue, version_queues
from a2a_celery.execution.celery.announcer import WorkerAnnouncer, has_remote_control
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.start_check import announced_workers
from a2a_celery.store.admin.version_workers import VersionWorker, version_workers
from tests.support.waiting import eventually_async


@pytest.mark.parametrize(
    ("is_enabled", "fanout", "reachable"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_remote_control_has_to_be_enabled_and_needs_a_broker_with_fanout(
    is_enabled: bool, fanout: bool, reachable: bool
) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.worker_enable_remote_control = is_enabled
    consumer = Mock(app=app)
    consumer.conninfo.supports_exchange_type.side_effect = lambda kind: kind == "fanout" and fanout

    assert has_remote_control(consumer) is reachable


async def test_an_announcement_names_the_queues_that_the_worker_consumes(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    queues = [SimpleNamespace(name="two"), SimpleNamespace(name="one")]
    consumer = SimpleNamespace(hostname="celery@host", task_consumer=SimpleNamespace(queues=queues))
    announcer = WorkerAnnouncer(Settings(store_url=redis_server.store_url, key_prefix=keys.prefix), consumer)

    announcer.announce()
    consumer.task_consumer = None  # the broker is unavailable
    announcer.announce()

    announcements = [json.loads(text) for text in await store.run(announced_workers(keys))]
    assert announcements == [
        {"worker": "celery@host", "queues": ["one", "two"]},
        {"worker": "celery@host", "queues": []},
    ]


async def test_an_announcement_names_the_version_queues_also_of_queues_that_the_worker_has_left(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    app = Celery("test", set_as_current=False)
    agents = [
        Agent("echo", AgentCard(), "function", print, version="1"),
        Agent("other", AgentCard(), "function", print),
    ]
    for name in version_queues(app, agents, ["celery"]):
        app.amqp.queues.select_add(version_queue(app, name))
    queues = [SimpleNamespace(name="celery.echo.1"), SimpleNamespace(name="gpu")]
    consumer = SimpleNamespace(hostname="celery@host", app=app, task_consumer=SimpleNamespace(queues=queues))
    settings = Settings(store_url=redis_server.store_url, key_prefix=keys.prefix)
    announcer = WorkerAnnouncer(settings, consumer, agents, is_reachable=True)

    announcer.announce()
    announcer.announce()

    assert await store.run(version_workers(keys)) == [VersionWorker("celery@host", "celery.echo.1", "echo", "1")]
    assert await store.run(announced_workers(keys)) == [], "remote control reaches it"

    del queues[:]
    announcer.announce()

    assert await store.run(version_workers(keys)) == []


async def test_an_announcement_is_withdrawn_when_the_worker_begins_to_stop(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    app = Celery("test", set_as_current=False)
    agents = [Agent("echo", AgentCard(), "function", print, version="1")]
    queues = [SimpleNamespace(name="celery.echo.1")]
    consumer = SimpleNamespace(hostname="celery@host", app=app, task_consumer=SimpleNamespace(queues=queues))
    settings = Settings(store_url=redis_server.store_url, key_prefix=keys.prefix)
    announcer = WorkerAnnouncer(settings, consumer, agents, is_reachable=True)
    announcing = asyncio.create_task(asyncio.to_thread(announcer.announce_forever))
    await eventually_async(lambda: store.run(version_workers(keys)), what="it is announced")

    announcer.stopping.set()
    await announcing

    assert await store.run(version_workers(keys)) == []
