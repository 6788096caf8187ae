"""Blobs: large parts of messages, stored in Redis outside of Lua, or in an object store.

In Redis, a blob is a key of its task. A store client stages the blobs of an operation: one transaction sets a key for
each blob, runs the script, and deletes the keys. A script that writes the message renames the staged keys. A blob and
its references are therefore written together, or neither is written. The scripts that end or delete a task also end or
delete its blobs.

An object store has one folder for each task. A writer registers the task in the store, then writes the blob, and then
writes the reference. The task is therefore registered even if the writer dies before it writes the reference. A watcher
removes the folder of a registered task that does not exist. A script refuses to create a task whose blobs may have been
removed, so a referenced blob is never removed.

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
from typing import Any, NamedTuple, TypeVar

from ...concurrency import DaemonThreads
from ...errors import BlobsUnavailable
from ...settings import Settings
from ..keys import STAGED, Keys, tag_in
from ..operation import Argument, Operation, script
from .object_store import BlobMissing, ObjectStore
from .references import IN_REDIS, READING, SMALL_PART, BlobRef, BlobsExpired, Encoded, Reading, forget_packed

T = TypeVar("T")

ORPHAN_AFTER_US = 600_000_000
"""µs after which the blobs of a registered task that does not exist may be removed."""

MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of blobs that a process may have in memory. A reply may exceed the limit if no other reply is in
memory."""

BUDGET_TIMEOUT = 30.0
"""Seconds for which a reader waits for memory."""

DIGEST_IN_THREAD = 64 * 1024
"""Size of a blob, in bytes, above which its digest is computed in a thread."""


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
        self._keys = keys
        self._budget = MemoryBudget()
        self._threads = DaemonThreads(2, "a2a-blob-digests")

    def is_for(self, operation: Operation[Any]) -> bool:
        """Return True if an argument of the operation may have large parts."""
        if self._objects is None and not operation.script.adopts_blobs:
            return False
        if operation.has_detached_parts:
            return True
        events = [argument for argument in operation.args if isinstance(argument, Encoded)]
        return any(len(event) > self.threshold for event in events)

    async def put(
        self, operation: Operation[T], register: Callable[[Operation[bool]], Awaitable[bool]]
    ) -> Operation[T]:
        """Write the large parts of an operation as blobs, and return the operation with references to them.

        Without an object store, the returned operation contains the blobs.

        Args:
            operation: Operation with large parts.
            register: Function that runs the operation of `register_blobs`, before the first blob is written, and
                returns its result.

        Raises:
            BlobsUnavailable: A blob was not written.
        """
        arguments, blobs = await self._threads.call(lambda: self._extract(operation))
        if arguments is operation.args:
            return operation
        if self._objects is None:
            return self._stage(operation, arguments, blobs)
        if await register(register_blobs(self._keys, tag_in(operation.keys))) and forget_packed(operation):
            arguments, blobs = await self._threads.call(lambda: self._extract(operation))
        objects = self._objects
        await asyncio.gather(*(objects.put(name, content) for name, content in blobs.items()))
        return _pack(operation, arguments)

    def put_now(self, operation: Operation[T], register: Callable[[Operation[bool]], bool]) -> Operation[T]:
        """Write the large parts of an operation as `put` does, without an event loop."""
        arguments, blobs = self._extract(operation)
        if arguments is operation.args:
            return operation
        if self._objects is None:
            return self._stage(operation, arguments, blobs)
        if register(register_blobs(self._keys, tag_in(operation.keys))) and forget_packed(operation):
            arguments, blobs = self._extract(operation)
        for name, content in blobs.items():
            self._objects.put_now(name, content)
        return _pack(operation, arguments)

    async def get(
        self, refs: Collection[BlobRef], read_key: Callable[[str, int], Awaitable[bytes | None]]
    ) -> Mapping[str, bytes]:
        """Return the contents of blobs by name.

        Args:
            refs: References to the blobs.
            read_key: Function that returns the value of a Redis key with the given size, or None if the key does not
                exist.

        Raises:
            BlobMissing: A blob does not exist.
            BlobsUnavailable: A blob cannot be read, or does not have the expected size and digest.
        """

        async def read_blob(ref: BlobRef) -> tuple[str, bytes]:
            if ref.in_redis:
                content = _existing(ref, await read_key(self._key(ref.name), ref.size))
            else:
                content = await require(self._objects).get(ref.name)
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

    def get_now(self, refs: Collection[BlobRef], read_key: Callable[[str, int], bytes | None]) -> Mapping[str, bytes]:
        """Return the contents of blobs as `get` does, without an event loop."""
        contents: dict[str, bytes] = {}
        for ref in refs:
            if ref.in_redis:
                content = _existing(ref, read_key(self._key(ref.name), ref.size))
            else:
                content = require(self._objects).get_now(ref.name)
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

    def _key(self, name: str) -> str:
        """Return the Redis key of the blob with the name `name`."""
        tag, _, rest = name.partition("/")
        return self._keys.blob(tag, rest.replace(IN_REDIS, "", 1))

    def _stage(
        self, operation: Operation[T], arguments: Sequence[Argument], blobs: Mapping[str, bytes]
    ) -> Operation[T]:
        staged_blobs = {f"{self._key(name)}{STAGED}": content for name, content in blobs.items()}
        return replace(operation, keys=[*operation.keys, *staged_blobs], args=arguments, staged=staged_blobs)

    def _extract(self, operation: Operation[Any]) -> tuple[Sequence[Argument], dict[str, bytes]]:
        tag, arguments = tag_in(operation.keys), list(operation.args)
        mark, part_threshold = "", self.threshold
        if self._objects is None:
            mark, part_threshold = IN_REDIS, min(self.threshold, SMALL_PART)
        blobs: dict[str, bytes] = {}
        for n, argument in enumerate(arguments):
            if not isinstance(argument, Encoded):
                continue
            if argument.size <= self.threshold:
                arguments[n] = argument.attach()
            elif argument.packed is None:
                arguments[n], parts = argument.extract_blobs(tag, part_threshold, mark)
                blobs |= parts
            else:
                arguments[n] = argument.packed
        has_changes = any(new is not old for new, old in zip(arguments, operation.args, strict=True))
        return arguments if has_changes else operation.args, blobs


def blobs_of(settings: Settings) -> Blobs:
    """Return the access to the blobs of a deployment.

    Raises:
        ConfigError: fsspec or its driver is not installed, or `blob_url` is invalid.
    """
    keys = Keys(settings.key_prefix)
    if settings.blob_url is None:
        return Blobs(None, keys, settings.blob_threshold)
    return Blobs(ObjectStore(f"{settings.blob_url.rstrip('/')}/{settings.key_prefix}"), keys, settings.blob_threshold)


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


def _existing(ref: BlobRef, content: bytes | None) -> bytes:
    if content is None:
        raise BlobMissing(f"Redis has no blob {ref.name}")
    return content


def register_blobs(keys: Keys, tag: str) -> Operation[bool]:
    """Register a task with blobs.

    Returns:
        True if the task was not registered before. Blobs that were written earlier may then have been removed.

    Raises:
        BlobsExpired: The folder of an earlier task with the same tag is being removed. `parse` raises this error.
    """

    def parse(reply: bytes) -> bool:
        if reply == b"removing":
            raise BlobsExpired("the blobs of an earlier task with the same id are being removed")
        return reply == b"new"

    return Operation(script("register_blobs"), [keys.blobs, keys.orphaned_blobs], [tag, ORPHAN_AFTER_US], parse)


def _pack(operation: Operation[T], arguments: Sequence[Argument]) -> Operation[T]:
    for argument, new_argument in zip(operation.args, arguments, strict=True):
        if isinstance(argument, Encoded) and isinstance(new_argument, bytes) and new_argument is not argument:
            argument.packed = new_argument
    return replace(operation, args=arguments)


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
    """

    def __init__(self, size: int = MAX_BYTES) -> None:
        self._size = size
        self._acquired: Counter[str | None] = Counter()  # bytes by owner
        self._released = asyncio.Condition()
        self._notifications: set[asyncio.Task[None]] = set()

    async def acquire(self, amount: int) -> Grant:
        """Release the bytes of the current reservation, then acquire `amount` bytes.

        Raises:
            BlobsUnavailable: The bytes were not free within `BUDGET_TIMEOUT` seconds.
        """
        reservation = _RESERVATION.get()
        if reservation is None:
            grant = Grant(min(amount, self._size), None)
        else:
            reservation.release()
            grant = Grant(min(amount, self._size // 2), reservation.owner)
        try:
            async with asyncio.timeout(BUDGET_TIMEOUT), self._released:
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
