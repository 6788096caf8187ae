"""Encoding of Redis commands, which equals the encoding of redis-py."""

from __future__ import annotations

import pytest
from redis.asyncio import Connection

from a2a_celery.store.client.round_trips import Command, pack_commands


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
