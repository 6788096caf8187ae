"""Blobs: large parts of messages, stored in Redis outside of Lua, or in an object store.

A store client writes the blobs of an operation before it runs the script. The script refuses the call, without
changing anything, if one of the blobs no longer exists. Otherwise, a script that writes the message makes the blobs
permanent in the same step, so a reference never leads to a removed blob. Both stores remove a blob that no script has
made permanent:

- In Redis, a blob is a key of its task with an expiry, which the script removes. If the script refuses the message, the
  script shortens the expiry to a second. The scripts that end or delete a task also end or delete its blobs.
- An object store has one folder for each task. The task is registered before its first blob is written, and the blobs
  of a registered task are permanent as long as the task exists. A watcher removes the folder of a registered task that
  does not exist.

The large results of a journal are in a subfolder of the task's folder. After a script has deleted a journal, a watcher
removes the subfolder. If a writer whose run was lost then writes another blob, the blob is removed with the task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, TypeVar

from ...concurrency import DaemonThreads
from ...errors import BlobsUnavailable
from ...settings import Settings
from ..keys import Keys, tag_in
from ..operation import Argument, Operation
from ..verbs import Reply, verb
from .object_store import ObjectStore
from .redis_blobs import key_of
from .references import IN_REDIS, READING, SMALL_PART, BlobRef, Encoded, Reading

T = TypeVar("T")

ORPHAN_AFTER_US = 600_000_000
"""µs after which the blobs of a registered task that does not exist may be removed."""

THRESHOLD = 256 * 1024
"""Threshold of a deployment; see `Blobs`."""

MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of blobs that a process may have in memory. A reply may exceed the limit if no other reply is in
memory."""

BUDGET_TIMEOUT = 30.0
"""Seconds for which a reader waits for memory."""

DIGEST_IN_THREAD = 64 * 1024
"""Size of a blob, in bytes, above which its digest is computed in a thread."""


class BlobStore(Protocol):
    """Store of blobs for code with an event loop: Redis or an object store."""

    async def put(self, name: str, content: bytes) -> None:
        """Write a blob, which is removed later unless a script makes it permanent."""

    async def get(self, ref: BlobRef) -> bytes:
        """Return the content of a blob."""


class SyncBlobStore(Protocol):
    """Store of blobs for code without an event loop; see `BlobStore`."""

    def put_now(self, name: str, content: bytes) -> None:
        """See `BlobStore.put`."""

    def get_now(self, ref: BlobRef) -> bytes:
        """See `BlobStore.get`."""


class Blobs:
    """Access to the blobs of one deployment. The coroutines of an instance must run on one event loop.

    Args:
        objects: Object store for new blobs, or None to store new blobs in Redis.
        keys: Keys of the deployment.
        threshold: Size in bytes above which a part becomes a blob. In Redis, the parts above `SMALL_PART` of a message
            that is larger than `threshold` become blobs.
    """

    def __init__(self, objects: ObjectStore | None, keys: Keys, threshold: int) -> None:
        self.threshold = threshold
        self._objects = objects
        self.keys = keys
        self._budget = MemoryBudget()
        self._threads = DaemonThreads(2, "a2a-blob-digests")

    def is_for(self, operation: Operation[Any]) -> bool:
        """Return True if an argument of the operation may have large parts."""
        if self._objects is None and not operation.script.keeps_blobs:
            return False
        events = [argument for argument in operation.args if isinstance(argument, Encoded)]
        return any(len(event) > self.threshold for event in events)

    async def put(
        self, operation: Operation[T], in_redis: BlobStore, register: Callable[[Operation[None]], Awaitable[None]]
    ) -> Operation[T]:
        """Write the large parts of an operation as blobs, and return the operation with references to them.

        Args:
            operation: Operation with large parts.
            in_redis: Blobs in Redis.
            register: Function that runs the operation of `register_blobs`, before the first blob is written to an
                object store.

        Raises:
            BlobsUnavailable: A blob was not written to the object store.
            StoreUnavailable: A blob was not written to Redis.
        """
        arguments, blobs = await self._threads.call(lambda: self._extract(operation))
        if blobs and self._objects is not None:
            await register(register_blobs(self.keys, tag_in(operation.keys)))
        target = self._objects or in_redis
        await asyncio.gather(*(target.put(name, content) for name, content in blobs.items()))
        return self._with_references(operation, arguments, blobs)

    def put_now(
        self, operation: Operation[T], in_redis: SyncBlobStore, register: Callable[[Operation[None]], None]
    ) -> Operation[T]:
        """Write the large parts of an operation as `put` does, without an event loop."""
        arguments, blobs = self._extract(operation)
        if blobs and self._objects is not None:
            register(register_blobs(self.keys, tag_in(operation.keys)))
        target = self._objects or in_redis
        for name, content in blobs.items():
            target.put_now(name, content)
        return self._with_references(operation, arguments, blobs)

    async def get(self, refs: Collection[BlobRef], in_redis: BlobStore) -> Mapping[str, bytes]:
        """Return the contents of blobs by name.

        Args:
            refs: References to the blobs.
            in_redis: Blobs in Redis.

        Raises:
            BlobMissing: A blob does not exist.
            BlobsUnavailable: A blob cannot be read, or does not have the expected size and digest.
        """

        async def read_blob(ref: BlobRef) -> tuple[str, bytes]:
            content = await (in_redis if ref.in_redis else require(self._objects)).get(ref)
            if len(content) > DIGEST_IN_THREAD:
                await self._threads.call(lambda: _require_intact(ref, content))
            else:
                _require_intact(ref, content)
            return ref.name, content

        grant = await self._budget.acquire(sum(ref.size for ref in refs))
        try:
            contents = dict(await asyncio.gather(*map(read_blob, refs)))
        except BaseException:
            self._budget.release(grant)
            raise
        self._budget.hold(grant)
        return contents

    def get_now(self, refs: Collection[BlobRef], in_redis: SyncBlobStore) -> Mapping[str, bytes]:
        """Return the contents of blobs as `get` does, without an event loop."""
        contents: dict[str, bytes] = {}
        for ref in refs:
            content = (in_redis if ref.in_redis else require(self._objects)).get_now(ref)
            _require_intact(ref, content)
            contents[ref.name] = content
        return contents

    async def remove(self, folder: str) -> None:
        """Remove all blobs of a task or a journal from the object store.

        Args:
            folder: Member of `Keys.orphaned_blobs`.

        Raises:
            BlobsUnavailable: The folder was not removed.
        """
        await require(self._objects).remove(folder)

    async def aclose(self) -> None:
        """Close the connections to the object store."""
        if self._objects is not None:
            await self._objects.aclose()

    def _extract(self, operation: Operation[Any]) -> tuple[Sequence[Argument], dict[str, bytes]]:
        """Return the arguments with references instead of large parts, and the contents of these parts by blob name."""
        tag, arguments = tag_in(operation.keys), list(operation.args)
        mark, part_threshold = "", self.threshold
        if self._objects is None:
            mark, part_threshold = IN_REDIS, min(self.threshold, SMALL_PART)
        blobs: dict[str, bytes] = {}
        for n, argument in enumerate(arguments):
            if isinstance(argument, Encoded) and len(argument) > self.threshold:
                arguments[n], parts = argument.extract_blobs(tag, part_threshold, mark)
                blobs |= parts
        return arguments, blobs

    def _with_references(
        self, operation: Operation[T], arguments: Sequence[Argument], blobs: Mapping[str, bytes]
    ) -> Operation[T]:
        """Return the operation with other arguments, and with the keys by which the script finds the blobs: their keys
        in Redis, or `Keys.blobs` for an object store."""
        if self._objects is None:
            blob_keys = [key_of(self.keys, name) for name in blobs]
        else:
            blob_keys = [self.keys.blobs] if blobs else []
        return replace(operation, keys=[*operation.keys, *blob_keys], args=arguments)


def blobs_of(settings: Settings) -> Blobs:
    """Return the access to the blobs of a deployment.

    Raises:
        ConfigError: fsspec or its driver is not installed, or `blob_url` is invalid.
    """
    keys = Keys(settings.key_prefix)
    if settings.blob_url is None:
        return Blobs(None, keys, THRESHOLD)
    return Blobs(ObjectStore(f"{settings.blob_url.rstrip('/')}/{settings.key_prefix}"), keys, THRESHOLD)


def read(operation: Operation[T], reply: Any, available: Mapping[str, bytes]) -> tuple[T, Collection[BlobRef]]:
    """Parse a reply with the contents of the `available` blobs. Return the result, and references to missing blobs."""
    reading = Reading(available)
    reading_token = READING.set(reading if operation.resolve_blobs else None)
    try:
        return operation.parse(reply), reading.missing.values()
    finally:
        READING.reset(reading_token)


def require(access: T | None) -> T:
    """Return `access`, or raise an error if it is None.

    Args:
        access: Object store or `Blobs`, needed to read or remove a blob.

    Raises:
        BlobsUnavailable: `access` is None: the process has no object store, or the store was opened without blobs.
    """
    if access is None:
        raise BlobsUnavailable(
            "a part is in an object store, but this process has no a2a_blob_url: set A2A_BLOB_URL to the value of the "
            "process that wrote the part"
        )
    return access


@verb
def register_blobs(keys: Keys, tag: str) -> Reply[None]:
    """Register a task with blobs in an object store.

    Raises:
        BlobsUnavailable: The folder of an earlier task with the same tag is being removed. `parse` raises this error.
    """

    def parse(reply: bytes) -> None:
        if reply == b"removing":
            raise BlobsUnavailable("the blobs of an earlier task with the same id are being removed")

    return Reply(parse)


def _require_intact(ref: BlobRef, content: bytes) -> None:
    if len(content) != ref.size:
        raise BlobsUnavailable(f"blob {ref.name} is corrupt: it has {len(content)} bytes instead of {ref.size}")
    if sha256(content).hexdigest() != ref.digest:
        raise BlobsUnavailable(f"blob {ref.name} is corrupt: its content has another SHA-256 digest than its name")


class Grant(NamedTuple):
    """Acquired bytes of a `MemoryBudget`, and the owner of the response that reserves them, or None."""

    amount: int
    owner: str | None


class MemoryBudget:
    """Memory budget of `size` bytes, which the readers of blobs on one event loop share.

    The responses to one owner reserve at most half of the budget, so that a client that does not read its responses
    does not delay other owners. A larger response counts as half of the budget.

    Args:
        size: Size of the budget in bytes.
        timeout: Maximum seconds that a reader waits for free bytes.
    """

    def __init__(self, size: int = MAX_BYTES, *, timeout: float = BUDGET_TIMEOUT) -> None:
        self._size = size
        self._timeout = timeout
        self._acquired: Counter[str | None] = Counter()  # bytes by owner
        self._released = asyncio.Condition()
        self._notifications: set[asyncio.Task[None]] = set()

    async def acquire(self, amount: int) -> Grant:
        """Release the bytes of the current reservation, then acquire `amount` bytes.

        Raises:
            BlobsUnavailable: The bytes were not free within `timeout` seconds.
        """
        reservation = _RESERVATION.get()
        if reservation is None:
            grant = Grant(min(amount, self._size), None)
        else:
            reservation.release()
            grant = Grant(min(amount, self._size // 2), reservation.owner)
        try:
            async with asyncio.timeout(self._timeout), self._released:
                await self._released.wait_for(lambda: self._is_free_for(grant))
                self._count(grant, 1)
        except TimeoutError:
            raise BlobsUnavailable("too many large parts are being read at once") from None
        return grant

    def hold(self, grant: Grant) -> None:
        """Assign acquired bytes to the current reservation, or release them if there is no reservation."""
        reservation = _RESERVATION.get()
        if reservation is None:
            self.release(grant)
        else:
            reservation.budget, reservation.grant = self, grant

    def release(self, grant: Grant) -> None:
        """Release acquired bytes and wake the waiting readers."""
        self._count(grant, -1)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    def _is_free_for(self, grant: Grant) -> bool:
        if grant.owner is not None and self._acquired[grant.owner] + grant.amount > self._size // 2:
            return False
        return self._acquired.total() + grant.amount <= self._size

    def _count(self, grant: Grant, sign: int) -> None:
        self._acquired[grant.owner] += sign * grant.amount
        if not self._acquired[grant.owner]:
            del self._acquired[grant.owner]

    async def _notify(self) -> None:
        async with self._released:
            self._released.notify_all()


class Reservation:
    """Bytes of a `MemoryBudget` that stay acquired until a response to `owner` is sent."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.budget: MemoryBudget | None = None
        self.grant = Grant(0, owner)

    def release(self) -> None:
        """Release the bytes, if any are acquired."""
        if self.budget is not None:
            self.budget.release(self.grant)
            self.budget = None


_RESERVATION: ContextVar[Reservation | None] = ContextVar("a2a_celery_blob_reservation", default=None)


@contextmanager
def reserve_memory(owner: str = "") -> Iterator[Reservation]:
    """Reserve the memory of the blobs that the ``with`` block reads for a response to `owner`, until the reservation is
    released or the block ends."""
    reservation = Reservation(owner)
    token = _RESERVATION.set(reservation)
    try:
        yield reservation
    finally:
        _RESERVATION.reset(token)
        reservation.release()
