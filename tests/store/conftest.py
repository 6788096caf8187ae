"""Fixtures for the tests of the store. The leak checker runs after every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.client import connection
from tests.support.clients.store_operator import Command, operator_command
from tests.support.processes.restarts import installed_servers
from tests.support.store.blob_setup import BlobSetup
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.leaks import leaks
from tests.support.store.seeds import Seeds


@pytest.fixture
def immediate_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store clients that the test creates retry without a delay."""
    monkeypatch.setattr(connection, "ExponentialWithJitterBackoff", lambda **_: NoBackoff())


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def webhooks(store: AsyncStore, keys: Keys) -> Webhooks:
    return Webhooks(store, keys)


@pytest.fixture
def command(redis_server: EmbeddedRedis) -> Command:
    """Function that runs a command as an operator of a deployment with two agents."""
    return operator_command(redis_server)


@pytest.fixture
async def task_id(seeds: Seeds, webhooks: Webhooks) -> str:
    """Id of a claimed task with a push-notification config, to which event 2 is due."""
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    await seeds.claim_run(task_id)
    return task_id


@pytest.fixture(autouse=True)
async def nothing_leaks(store: AsyncStore, keys: Keys) -> AsyncIterator[None]:
    """Assert after each test that every key in Redis follows its rule."""
    yield
    assert await leaks(store, keys) == []


@pytest.fixture
async def schema_record(store: AsyncStore, keys: Keys) -> None:
    """Record the schema of this release in the store, as the first started process does."""
    await store.redis.hset(keys.installation, "schema", SCHEMA)


@pytest.fixture(scope="module", params=installed_servers(), ids=str)
def server_of_each_version(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """Redis server for the tests of a module, for each installed version."""
    server = EmbeddedRedis(server=request.param)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def any_server(server_of_each_version: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    """Redis server without data and scripts, for each installed version. After the test, the fixture restores the
    server's configuration."""
    with Redis.from_url(server_of_each_version.store_url) as client:
        client.flushall()
        client.script_flush()
        config = client.config_get()
        yield server_of_each_version
        client.replicaof("NO", "ONE")
        for name, value in client.config_get().items():
            if value != config[name]:
                client.config_set(name, config[name])


@pytest.fixture
def blob_seeds(blob_setup: BlobSetup, keys: Keys) -> Seeds:
    """`Seeds` for the store of `blob_setup`, which moves large parts to an object store."""
    return Seeds(blob_setup.store, keys)
