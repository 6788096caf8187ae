"""Processes without an object store. They refuse to start on a store that has tasks with blobs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import ConfigError
from a2a_celery.execution.celery.start_check import worker_starts
from a2a_celery.settings import Settings, visible_settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import require_schema
from a2a_celery.store.blobs.blob_store import register_blobs


@pytest.fixture
async def app_without_blob_url(store: AsyncStore, redis_server: EmbeddedRedis) -> A2A:
    """App without `blob_url` on a store that has a task with blobs."""
    await require_schema(store, Keys())
    await store.run(register_blobs(Keys(), "t"))
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.a2a_store_url = redis_server.store_url
    a2a = A2A(app)
    a2a.agent("echo")(lambda turn: turn.text)
    return a2a


async def test_no_watcher_starts(app_without_blob_url: A2A) -> None:
    watcher = app_without_blob_url.watcher()

    with pytest.raises(ConfigError, match="a2a_blob_url is not set, and 1 tasks"):
        await watcher.run(asyncio.Event())


async def test_no_gateway_starts(app_without_blob_url: A2A) -> None:
    asgi = app_without_blob_url.asgi()

    with pytest.raises(ConfigError, match="a2a_blob_url is not set"):
        async with asgi.router.lifespan_context(asgi):
            pass


async def test_no_worker_starts(app_without_blob_url: A2A) -> None:
    app_without_blob_url.worker()  # a worker's signals are connected at its start
    with pytest.raises(SystemExit, match="a2a_blob_url is not set"):
        worker_starts(SimpleNamespace(app=app_without_blob_url.celery))


def test_the_doctor_compares_urls_without_their_passwords() -> None:
    settings = Settings(store_url="redis://h/0", blob_url="sftp://me:secret@files/a?key=secret")

    assert visible_settings(settings)["blob_url"] == "sftp://files/a"
    assert "secret" not in repr(settings)
