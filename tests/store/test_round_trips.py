"""Encoding of Redis commands, which equals the encoding of redis-py, and the number of connections."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.asyncio import Connection

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.client.round_trips import Command, pack_commands
from a2a_celery.store.tasks.commands import read_task


@pytest.mark.parametrize(
    "commands",
    [
        [("PING",)],
        [("EVALSHA", "ab" * 20, 2, "a2a:{t}", b"\x00\r\n\xff", -5, "", b"", "für")],
        [("GET", "a"), ("SET", "a", b"x" * 20_000), ("GET", "b")],
        [],
    ],
)
def test_commands_are_packed_as_redis_py_packs_them(commands: list[Command]) -> None:
    expected = b"".join(Connection().pack_commands(commands))

    assert pack_commands(commands) == expected


async def test_operations_wait_for_the_connections_that_the_url_permits(
    redis_server: EmbeddedRedis, keys: Keys
) -> None:
    url = redis_server.store_url
    store = AsyncStore(f"{url}{'&' if '?' in url else '?'}max_connections=2")

    tasks = await asyncio.gather(*(store.run(read_task(keys, None, f"t{number}")) for number in range(200)))

    assert tasks == [None] * 200
    assert await store.redis.ping(), "a connection is left for other commands"
    await store.aclose()


def test_threads_wait_for_the_connections_that_the_url_permits(redis_server: EmbeddedRedis, keys: Keys) -> None:
    url = redis_server.store_url
    store = SyncStore(f"{url}{'&' if '?' in url else '?'}max_connections=2")

    with ThreadPoolExecutor(8) as threads:
        tasks = list(threads.map(lambda number: store.run(read_task(keys, None, f"t{number}")), range(200)))

    assert tasks == [None] * 200
    store.close()
