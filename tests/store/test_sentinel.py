"""Stores behind Sentinels: discovery with TLS and passwords, and failover."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from a2a_celery.errors import StoreUnavailable
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.start_check import server_of
from a2a_celery.store.client.connection import run_with_retry
from a2a_celery.store.client.redis_clients import NO_PRIMARY, PrimaryRetry
from a2a_celery.store.log.pubsub import PubSubListener
from a2a_celery.store.tasks.commands import read_task
from tests.support.certificates import Authority
from tests.support.processes.restarts import installed_servers
from tests.support.processes.sentinels import LOCALHOST, MASTER_NAME, SentinelGroup, running_sentinels
from tests.support.processes.tls_servers import built_with_tls
from tests.support.store.seeds import ANN, Seeds
from tests.support.waiting import eventually, eventually_async

pytestmark = pytest.mark.merge


@pytest.fixture(params=installed_servers(), ids=str)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SentinelGroup]:
    """Primary, replica and three Sentinels, for each installed version of Redis."""
    with running_sentinels(tmp_path, server=request.param, replicas=1) as group:
        yield group


async def create_when_available(store: AsyncStore, keys: Keys) -> str:
    """Retry until the store has created a task. Return the task's id."""

    async def create() -> str:
        with suppress(StoreUnavailable):
            return await Seeds(store, keys).create_task()
        return ""

    return await eventually_async(create, what="the store accepts a task")


def is_replicated(group: SentinelGroup) -> bool:
    """Return True if a replica has confirmed all writes of the primary."""
    with group.client(group.primary()) as client:
        return bool(client.wait(1, 1000) >= 1)


async def test_store_and_notifications_follow_a_failover(group: SentinelGroup, keys: Keys) -> None:
    store, sync_store, subscriber = (
        AsyncStore(group.store_url),
        SyncStore(group.store_url),
        PubSubListener(group.store_url),
    )
    task_id = await create_when_available(store, keys)
    assert sync_store.run(read_task(keys, ANN, task_id))
    eventually(lambda: is_replicated(group), what="the replica has the task")
    async with subscriber.listen("channel") as signal:

        async def is_notified() -> bool:
            await store.redis.publish("channel", "1")
            await signal.wait(timeout=1, after=0)
            return subscriber.channels > 0 and await store.redis.pubsub_numsub("channel") == [(b"channel", 1)]

        await eventually_async(is_notified, what="a notification is received")
        await asyncio.to_thread(group.wait_for_failover, group.kill_primary())

        assert await run_with_retry(store, read_task(keys, ANN, task_id))
        await create_when_available(store, keys)
        await asyncio.to_thread(eventually, lambda: sync_store.run(read_task(keys, ANN, task_id)))
        await eventually_async(is_notified, what="a notification of the new primary is received")

    assert server_of(sync_store).primary
    await subscriber.stop()
    await store.aclose()
    sync_store.close()


async def test_connections_leave_a_replaced_primary(
    group: SentinelGroup, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AsyncStore(group.store_url)
    task_id = await create_when_available(store, keys)
    eventually(lambda: is_replicated(group), what="the replica has the task")
    pool = store.redis.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    [replica] = set(group.ports) - {group.primary()}

    async def new_primary(_: str) -> tuple[str, int]:
        return LOCALHOST, replica

    monkeypatch.setattr(pool.sentinel_manager, "discover_master", new_primary)
    await pool.get_master_address()  # as a new connection does
    assert await store.run(read_task(keys, ANN, task_id))

    with group.client(replica) as client:
        assert "cmdstat_eval" in client.info("commandstats")
    await store.aclose()


async def test_a_silent_sentinel_is_skipped(group: SentinelGroup, keys: Keys) -> None:
    store, sync_store = AsyncStore(group.store_url), SyncStore(group.store_url)
    silent_sentinel = group.processes[group.sentinel_ports[0]]
    silent_sentinel.send_signal(signal.SIGSTOP)

    await store.ping()
    await asyncio.to_thread(sync_store.ping)

    silent_sentinel.send_signal(signal.SIGCONT)
    await store.aclose()
    sync_store.close()


def test_an_unknown_primary_name_is_reported(group: SentinelGroup) -> None:
    store = SyncStore(group.store_url.replace(MASTER_NAME, "other"))

    with pytest.raises(StoreUnavailable, match="the Sentinels report no available primary"):
        store.ping()
    store.close()


async def test_primary_and_sentinels_have_separate_tls_and_passwords(tmp_path: Path, keys: Keys) -> None:
    authority = Authority.create_in(tmp_path)
    key, certificate = authority.issue("redis", "127.0.0.1")
    tls = {"tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": authority.file}
    shared = {**tls, "tls-replication": "yes", "tls-auth-clients": "no", "port": "0"}
    client = {"ssl": True, "ssl_ca_certs": str(authority.file)}
    with running_sentinels(
        tmp_path,
        server=built_with_tls(),
        replicas=1,
        options=[
            word
            for name, value in {**shared, "requirepass": "of-primary", "masterauth": "of-primary"}.items()
            for word in (f"--{name}", str(value))
        ],
        sentinel_lines=[
            *(f"{name} {value}" for name, value in shared.items()),
            "requirepass of-sentinels",
            f"sentinel auth-pass {MASTER_NAME} of-primary",
        ],
        client={**client, "password": "of-primary"},
        sentinel_client={**client, "password": "of-sentinels"},
        port_option="tls-port",
    ) as group:
        options = f"?master_name={MASTER_NAME}&ssl_ca_certs={authority.file}&sentinel_password=of-sentinels"
        url = f"sentinels://:of-primary@{group.hosts}/0{options}"
        store, sync_store = AsyncStore(url), SyncStore(url)

        task_id = await create_when_available(store, keys)
        assert sync_store.run(read_task(keys, ANN, task_id))
        for wrong_url in (url.replace("of-primary", "other"), url.replace("of-sentinels", "other")):
            sync_client = SyncStore(wrong_url)
            with pytest.raises(StoreUnavailable):
                sync_client.ping()
            sync_client.close()

        await asyncio.to_thread(group.wait_for_failover, group.kill_primary())
        await create_when_available(store, keys)
        await store.aclose()
        sync_store.close()


def test_sentinels_that_are_unreachable_are_reported_in_a_few_words() -> None:
    store = SyncStore("sentinel://127.0.0.1:1/1?master_name=mymaster")
    with pytest.raises(StoreUnavailable, match=r"^the Sentinels report no available primary$"):
        server_of(store)
    store.close()


def test_silent_sentinels_are_asked_once() -> None:
    """An operator command must not wait for several timeouts of each Sentinel."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((LOCALHOST, 0))) for _ in range(2)]
        hosts = ",".join(f"{LOCALHOST}:{listener.getsockname()[1]}" for listener in listeners)
        store = SyncStore(f"sentinel://{hosts}/0?master_name={MASTER_NAME}")
        with pytest.raises(StoreUnavailable, match=NO_PRIMARY):
            store.ping()
        store.close()

        for listener in listeners:
            listener.settimeout(10)
            listener.accept()[0].close()
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()


@pytest.mark.parametrize("options", [{}, {"with_failure_count": True}])
def test_retries_pass_only_the_options_that_redis_py_has_set(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py 7.0 and 7.1 have no `with_failure_count`."""
    calls: list[set[str]] = []
    monkeypatch.setattr(Retry, "call_with_retry", lambda _retry, _do, _fail, **options: calls.append(set(options)))

    PrimaryRetry(NoBackoff(), 0, window=0).call_with_retry(int, repr, **options)

    assert calls == [{"is_retryable", *options}]
