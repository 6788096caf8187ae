"""Outages of Redis. The store client raises `StoreUnavailable` instead of redis-py's errors, and recovers without a
restart."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.store import AsyncStore, Keys, Operation, SyncStore, redis_url
from a2a_celery.store.client.connection import MAX_BATCH, MAX_SENDERS
from a2a_celery.store.client.round_trips import RoundTrips
from a2a_celery.store.operation import Script
from a2a_celery.store.runs.recovery import lapsed_runs
from a2a_celery.store.tasks.commands import create_task, read_task
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, Seeds, request
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("immediate_retries")

Fault = Callable[[Redis, Path], AbstractContextManager[None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path) as server:
        yield server


def script(text: str) -> Operation[object]:
    """Return an operation that runs the Lua code `text`."""
    return Operation(Script("test", text, "0" * 40), [], [], lambda answer: answer)


async def test_an_async_store_reports_an_outage_and_recovers(server: MortalRedis, keys: Keys) -> None:
    store = AsyncStore(server.store_url)
    task_id = await Seeds(store, keys).create_task()

    server.die()
    with pytest.raises(StoreUnavailable):
        await store.run(read_task(keys, ANN, task_id))
    with pytest.raises(StoreUnavailable):
        await store.ping()
    many = await asyncio.gather(*(store.run(read_task(keys, ANN, task_id)) for _ in range(100)), return_exceptions=True)
    assert {type(answer) for answer in many} == {StoreUnavailable}

    server.start()
    await store.ping()
    assert (await Seeds(store, keys).task(task_id)).id == task_id
    await store.aclose()


async def test_a_server_in_protected_mode_is_reported_as_such() -> None:
    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reply as Redis does to a client of another host, before the client's first command."""
        writer.write(b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(deny, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        store = AsyncStore(f"redis://{host}:{port}/0")
        with pytest.raises(StoreUnavailable, match=r"DENIED .*set a password, or protected-mode no"):
            await store.run(script("return 1"))
        await store.aclose()


async def test_a_round_trip_that_is_cut_off_leaves_no_reply_to_the_next_one(store: AsyncStore) -> None:
    trips = RoundTrips(store.redis.connection_pool, 5)
    for steps in range(24):  # each round cancels at a later point; the last rounds cancel between two replies
        cut_off = asyncio.create_task(trips.make([("ECHO", "old"), ("BLPOP", "nothing", 60), ("ECHO", "old")]))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off

        assert await trips.make([("ECHO", f"new {steps}")]) == [f"new {steps}".encode()]
    await trips.aclose()


async def test_the_late_reply_of_a_silent_server_is_discarded(store: AsyncStore) -> None:
    trips = RoundTrips(store.redis.connection_pool, 0.1)

    with pytest.raises(RedisTimeout):
        await trips.make([("ECHO", "old"), ("BLPOP", "nothing", 60)])

    trips.timeout = 30  # a slow reply is no timeout
    assert await trips.make([("ECHO", "new")]) == [b"new"]
    await trips.aclose()


async def test_the_error_of_a_pipeline_names_the_operation_of_each_caller(keys: Keys) -> None:
    store = AsyncStore("redis://127.0.0.1:1/0")
    operations = [read_task(keys, ANN, "t"), lapsed_runs(keys, limit=1)]

    errors = await asyncio.gather(*map(store.run, operations), return_exceptions=True)

    assert [str(error).split()[3] for error in errors] == [operation.script.name for operation in operations]
    await store.aclose()


async def test_cancelled_callers_delay_no_others_during_an_outage(keys: Keys) -> None:
    store = AsyncStore("redis://127.0.0.1:1/0")
    calls = [asyncio.create_task(store.run(read_task(keys, ANN, "t"))) for _ in range(MAX_SENDERS * MAX_BATCH)]
    remaining = asyncio.create_task(store.run(read_task(keys, ANN, "t")))
    await asyncio.sleep(0)  # all operations are queued, none is sent
    for task in calls:
        task.cancel()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(remaining, 10)

    await asyncio.gather(*calls, return_exceptions=True)
    await store.aclose()


async def test_a_sync_store_reports_an_outage_and_recovers(server: MortalRedis, keys: Keys) -> None:
    store = SyncStore(server.store_url)
    call = create_task(keys, ANN, "t", "c", request(), caller=b"{}", retention=60)
    result = await asyncio.to_thread(store.run, call)

    server.die()
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(store.run, call)

    server.start()
    assert await asyncio.to_thread(store.run, call) == result
    store.close()


def test_a_silent_server_is_reported_after_two_timeouts() -> None:
    """redis-py's nested retries would wait for nine timeouts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = SyncStore(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", timeout=0.3)
        with pytest.raises(StoreUnavailable):
            store.ping()
        store.close()

        listener.settimeout(0)
        accepted_count = 0
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                accepted_count += 1
    assert accepted_count in (1, 2)  # on a loaded machine, no time may be left for the second


def test_the_first_timeout_is_retried() -> None:
    """The timeout may be that of an old connection after a failover."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = SyncStore(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", timeout=0.5)
        thread = threading.Thread(target=_answer_second_connection, args=(listener,), daemon=True)
        thread.start()
        store.ping()
        store.close()
        listener.shutdown(socket.SHUT_RDWR)  # ends the thread
        thread.join()


def _answer_second_connection(listener: socket.socket) -> None:
    """Accept connections. Reply to pings, except on the first connection."""
    with suppress(OSError):
        silent, _ = listener.accept()
        with silent:
            while True:
                accepted, _ = listener.accept()
                with accepted:
                    while request := accepted.recv(4096):
                        accepted.sendall(b"+PONG\r\n" if b"PING" in request else b"+OK\r\n")


@pytest.mark.parametrize("refusal", ["OOM no memory", "READONLY a replica", "LOADING data", "BUSY with a script"])
async def test_a_redis_that_refuses_is_unavailable(
    store: AsyncStore, redis_server: EmbeddedRedis, refusal: str
) -> None:
    sync_store = SyncStore(redis_server.store_url)
    operation = script(f"return redis.error_reply('{refusal}')")

    with pytest.raises(StoreUnavailable):
        await store.run(operation)
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(sync_store.run, operation)
    sync_store.close()


@contextmanager
def exceed_memory(redis: Redis, home: Path) -> Iterator[None]:
    """Exceed the memory limit of the server."""
    redis.config_set("maxmemory", "1")
    yield
    redis.config_set("maxmemory", "0")


@contextmanager
def unable_to_save(redis: Redis, home: Path) -> Iterator[None]:
    """Make the server's last snapshot fail, because a folder has the name of the snapshot file."""
    redis.config_set("save", "3600 1")
    (home / "dump.rdb").mkdir()
    redis.bgsave()
    eventually(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot failed")
    yield
    redis.config_set("save", "")
    (home / "dump.rdb").rmdir()


@contextmanager
def replica(redis: Redis, home: Path) -> Iterator[None]:
    """Make the server a replica of an unreachable primary."""
    redis.replicaof("127.0.0.1", "1")
    yield
    redis.replicaof("NO", "ONE")


@contextmanager
def stale_replica(redis: Redis, home: Path) -> Iterator[None]:
    """Make the server a replica that refuses reads too."""
    redis.config_set("replica-serve-stale-data", "no")
    with replica(redis, home):
        yield


@contextmanager
def without_replicas(redis: Redis, home: Path) -> Iterator[None]:
    """Require a replica that the server does not have."""
    redis.config_set("min-replicas-to-write", "1")
    yield
    redis.config_set("min-replicas-to-write", "0")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (exceed_memory, "OOM"),
        (unable_to_save, "MISCONF"),
        (replica, "READONLY"),
        (stale_replica, "MASTERDOWN"),
        (without_replicas, "NOREPLICAS"),
    ],
)
async def test_each_refusal_of_a_real_server_is_unavailable(
    any_server: EmbeddedRedis, keys: Keys, fault: Fault, code: str
) -> None:
    store, sync_store = AsyncStore(any_server.store_url), SyncStore(any_server.store_url)
    call = create_task(keys, ANN, str(uuid4()), "c", request(), caller=b"{}", retention=60)

    with Redis.from_url(any_server.store_url) as redis, fault(redis, any_server.home):
        with pytest.raises(StoreUnavailable, match=code):
            await store.run(call)
        with pytest.raises(StoreUnavailable, match=code):
            await asyncio.to_thread(sync_store.run, call)

    assert begins(await store.run(call))
    await store.aclose()
    sync_store.close()


@pytest.mark.parametrize("mistake", ["redis.call('GET')", "redis.call('HGET', KEYS[1], 'a')", "error('-OOM')"])
async def test_a_wrong_script_on_a_real_server_is_not_unavailable(any_server: EmbeddedRedis, mistake: str) -> None:
    store = AsyncStore(any_server.store_url)
    await store.redis.set("text", "OOM")

    with pytest.raises(ResponseError):
        await store.run(replace(script(mistake), keys=["text"]))
    await store.aclose()


async def test_a_bug_in_a_script_is_not_reported_as_unavailable(store: AsyncStore) -> None:
    with pytest.raises(ResponseError):
        await store.run(script("return nothing.at_all"))


async def test_one_bad_operation_does_not_affect_the_others_of_its_pipeline(store: AsyncStore, keys: Keys) -> None:
    task_id = await Seeds(store, keys).create_task()

    answers = await asyncio.gather(
        store.run(read_task(keys, ANN, task_id)),
        store.run(script("return nothing.at_all")),
        store.run(read_task(keys, ANN, task_id)),
        return_exceptions=True,
    )

    assert isinstance(answers[1], ResponseError)
    assert answers[0] == answers[2]
    assert not isinstance(answers[0], BaseException)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock", "rediss://127.0.0.1:1/0"])
async def test_an_unreachable_server_is_unavailable(url: str) -> None:
    store, sync_store = AsyncStore(url), SyncStore(url)

    with pytest.raises(StoreUnavailable):
        await store.ping()
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(sync_store.run, read_task(Keys(), ANN, "t"))

    await store.aclose()
    sync_store.close()


@pytest.mark.parametrize(
    ("spelling", "url"),
    [
        ("redis+socket:///a/b.sock?virtual_host=1", "unix:///a/b.sock?db=1"),
        ("valkey://host:1/2", "redis://host:1/2"),
        ("valkeys://host:1/2?ssl_cert_reqs=CERT_NONE", "rediss://host:1/2?ssl_cert_reqs=none"),
        ("redis://:secret@host/0", "redis://:secret@host/0"),
    ],
)
def test_celery_s_spellings_of_an_address_are_understood(spelling: str, url: str) -> None:
    assert redis_url(spelling) == url
