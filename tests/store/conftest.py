"""Fixtures for the tests of the store. The leak checker runs after every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from tests.support.blob_setup import BlobSetup
from tests.support.delivery_cursors import Webhooks
from tests.support.leaks import leaks
from tests.support.restarts import installed_servers
from tests.support.seeds import Seeds


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    """Helper that creates and reads tasks."""
    return Seeds(store, keys)


@pytest.fixture
def webhooks(store: AsyncStore, keys: Keys) -> Webhooks:
    """Helper that saves push-notification configs and leases their cursors."""
    return Webhooks(store, keys)


@pytest.fixture
async def task_id(seeds: Seeds, webhooks: Webhooks) -> str:
    """Id of a task with a push-notification config for which event 2 is due."""
    task_id = await seeds.created()
    await webhooks.saved(task_id)
    await seeds.claimed(task_id)
    return task_id


@pytest.fixture(autouse=True)
async def nothing_leaks(store: AsyncStore, keys: Keys) -> AsyncIterator[None]:
    """Require that no key breaks its rule after the test."""
    yield
    assert await leaks(store, keys) == []


@pytest.fixture
async def opened(store: AsyncStore, keys: Keys) -> None:
    """Open the store as a process of this release, like the processes of a fleet."""
    await store.redis.hset(keys.installation, "schema", SCHEMA)


@pytest.fixture(params=installed_servers(), ids=str)
def any_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """Running server of each installed version of Redis."""
    server = EmbeddedRedis(server=request.param)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def large(blob_setup: BlobSetup, keys: Keys) -> Seeds:
    """Helper that creates and reads tasks in the store of `blob_setup`."""
    return Seeds(blob_setup.store, keys)
