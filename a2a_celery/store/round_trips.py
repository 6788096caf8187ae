"""Round trips to Redis: commands out in one write, their replies in order.

What redis-py's own pipeline does, less what it does for cases that are none of ours: a round trip of one command takes
a third of the processor's time. Connections, handshakes, health checks and the protocol are redis-py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from .operation import Argument

Command = Sequence[Argument]

_SIZES = tuple(b"$%d" % size for size in range(256))
"""What stands before an argument of so many bytes, for nearly all that there are."""


def packed(commands: Sequence[Command]) -> bytes:
    """The commands as Redis reads them."""
    lines: list[bytes] = []
    add = lines.append
    for command in commands:
        add(b"*%d" % len(command))
        for argument in command:
            told = argument if isinstance(argument, bytes) else str(argument).encode()
            size = len(told)
            add(_SIZES[size] if size < len(_SIZES) else b"$%d" % size)
            add(told)
    add(b"")
    return b"\r\n".join(lines)


class RoundTrips:
    """Uses connections of `pool` and keeps them: as many as are under way at once. Each answer may take `patience`
    seconds; the pool's own timeouts belong switched off, they cost a task for every write."""

    def __init__(self, pool: ConnectionPool, patience: float) -> None:
        self._pool: Any = pool
        self._patience = patience
        self._idle: list[Any] = []

    async def make(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, each the error that Redis gave where it gave one. A connection that breaks is tried again, as
        often as the pool's `retry` says: so the commands may be carried out twice.

        Raises:
            redis.ConnectionError, redis.TimeoutError: Redis is away, or silent.
        """
        connection = self._idle.pop() if self._idle else await self._pool.get_connection()
        try:
            replies: list[Any] = await connection.retry.call_with_retry(
                lambda: self._exchange(connection, commands), lambda _: connection.disconnect()
            )
            return replies
        finally:
            self._idle.append(connection)

    async def _exchange(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        replies: list[Any] = []
        later = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._patience) as patience:
                await connection.send_packed_command([packed(commands)])
                while len(replies) < len(commands):
                    if replies:
                        patience.reschedule(later() + self._patience)
                    try:
                        replies.append(await connection.read_response())
                    except ResponseError as e:
                        replies.append(e)
        except TimeoutError:
            raise RedisTimeout("Redis was silent") from None
        return replies

    async def aclose(self) -> None:
        """Gives the connections back to their pool."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._pool.release(connection)
