"""Blobs in Redis. A blob is written before the script that refers to it, and expires unless the script makes it
permanent; see ``scripts/lib/blobs.lua``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import redis
from redis.exceptions import RedisError

from ..client.redis_clients import translate_error
from ..client.round_trips import Command, RoundTrips
from ..keys import Keys
from .references import IN_REDIS, BlobMissing, BlobRef

CALLS_AT_ONCE = 4
"""Maximum number of blobs that an `AsyncStore` reads or writes concurrently."""

EXPIRY = 60
"""Seconds after which a blob expires that no script has made permanent, because its writer was killed."""

SLICE = 1 << 20
"""Maximum number of bytes of a blob that one command reads."""


class RedisBlobs:
    """Blobs in Redis, accessed through the connections of an `AsyncStore`."""

    def __init__(self, keys: Keys, round_trips: RoundTrips) -> None:
        self._keys = keys
        self._round_trips = round_trips
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)

    async def put(self, name: str, content: bytes) -> None:
        """Write a blob, unless it exists.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the blob, for example because Redis is out of memory.
        """
        async with self._calls:
            await self._call(_put_command(self._keys, name, content))

    async def get(self, ref: BlobRef) -> bytes:
        """Return the content of a blob.

        Raises:
            BlobMissing: The blob does not exist.
            StoreUnavailable: Redis cannot be reached.
        """
        async with self._calls:
            return _join(ref, [await self._call(command) for command in _get_commands(self._keys, ref)])

    async def _call(self, command: Command) -> bytes:
        try:
            [reply] = await self._round_trips.make([command])
        except RedisError as e:
            raise translate_error(e, str(command[0])) from e
        if isinstance(reply, Exception):
            raise translate_error(reply, str(command[0]))
        content: bytes = reply
        return content


class SyncRedisBlobs:
    """Blobs in Redis, accessed without an event loop."""

    def __init__(self, keys: Keys, client: redis.Redis) -> None:
        self._keys = keys
        self._client = client

    def put_now(self, name: str, content: bytes) -> None:
        """Write a blob as `RedisBlobs.put` does."""
        self._call(_put_command(self._keys, name, content))

    def get_now(self, ref: BlobRef) -> bytes:
        """Return the content of a blob as `RedisBlobs.get` does."""
        return _join(ref, [self._call(command) for command in _get_commands(self._keys, ref)])

    def _call(self, command: Command) -> bytes:
        try:
            content: bytes = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except RedisError as e:
            raise translate_error(e, str(command[0])) from e
        return content


def key_of(keys: Keys, name: str) -> str:
    """Return the Redis key of the blob with the name `name`."""
    tag, _, rest = name.partition("/")
    return keys.blob(tag, rest.replace(IN_REDIS, "", 1))


def _put_command(keys: Keys, name: str, content: bytes) -> Command:
    return ("SET", key_of(keys, name), content, "NX", "EX", EXPIRY)


def _get_commands(keys: Keys, ref: BlobRef) -> list[Command]:
    """Return the commands that read a blob in slices.

    Redis copies a slice into its reply and serves other clients between two round trips. The reply of a slice is empty
    if the blob does not exist.
    """
    key = key_of(keys, ref.name)
    return [("GETRANGE", key, start, start + SLICE - 1) for start in range(0, ref.size, SLICE)]


def _join(ref: BlobRef, slices: Sequence[bytes]) -> bytes:
    if not all(slices):
        raise BlobMissing(f"Redis has no blob {ref.name}")
    return b"".join(slices)
