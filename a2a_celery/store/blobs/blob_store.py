"""Blobs: the parts of messages that are too large for Redis, in an object store, one folder a task.

Whoever writes a part first notes its task in the store, then writes the blob, then what refers to it. So whatever dies
between, the task is known, and a watcher that finds it gone removes its folder. Whether a task is gone, and that no new
one begins with blobs that may be removed, is said by scripts: what is referred to is never removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar

from ...concurrency import DaemonThreads
from ...errors import BlobsUnavailable
from ...settings import Settings
from ..keys import Keys, tag_in
from ..operation import Argument, Operation, script
from .memory_budget import MemoryBudget
from .object_store import ObjectStore
from .references import READING, BlobRef, BlobsExpired, Encoded, Reading, forget, take_out

T = TypeVar("T")

ORPHAN_AFTER_US = 600_000_000
"""µs for which blobs of a task that does not exist yet are not removed."""

DIGEST_BESIDE = 64 * 1024
"""Size in bytes from which a digest is computed in a thread."""


class Blobs:
    """The blobs of one deployment, for one process. Its coroutines belong to one event loop."""

    def __init__(self, objects: ObjectStore, keys: Keys, threshold: int) -> None:
        self.threshold = threshold
        self._objects = objects
        self._keys = keys
        self._budget = MemoryBudget()
        self._threads = DaemonThreads(2, "a2a-blob-digests")

    def is_for(self, operation: Operation[Any]) -> bool:
        """Return True if an argument of the operation may have large parts."""
        threshold = self.threshold
        return any(isinstance(one, Encoded) and len(one) > threshold for one in operation.args)

    async def put(self, operation: Operation[T], note: Callable[[Operation[bool]], Awaitable[bool]]) -> Operation[T]:
        """The operation with references; the parts that they stand for are written, behind what `note` is given to run.

        Raises:
            BlobsUnavailable: they are not.
        """
        arguments, blobs = await self._threads.call(lambda: self._taken_out(operation))
        if arguments is operation.args:
            return operation
        if await note(register_blobs(self._keys, tag_in(operation.keys))) and forget(operation):
            arguments, blobs = await self._threads.call(lambda: self._taken_out(operation))
        await asyncio.gather(*(self._objects.put(name, content) for name, content in blobs.items()))
        return _packed(operation, arguments)

    def put_now(self, operation: Operation[T], note: Callable[[Operation[bool]], bool]) -> Operation[T]:
        """`put`, for code without a loop."""
        arguments, blobs = self._taken_out(operation)
        if arguments is operation.args:
            return operation
        if note(register_blobs(self._keys, tag_in(operation.keys))) and forget(operation):
            arguments, blobs = self._taken_out(operation)
        for name, content in blobs.items():
            self._objects.put_now(name, content)
        return _packed(operation, arguments)

    async def get(self, refs: Collection[BlobRef]) -> Mapping[str, bytes]:
        """The blobs by name, each exactly as it was written.

        Raises:
            Missing: one is not there.
            BlobsUnavailable: one can't be read, or is not what was written.
        """

        async def one(ref: BlobRef) -> tuple[str, bytes]:
            content = await self._objects.get(ref.name)
            if len(content) > DIGEST_BESIDE:
                await self._threads.call(lambda: _require_intact(ref, content))
            else:
                _require_intact(ref, content)
            return ref.name, content

        amount = sum(ref.size for ref in refs)
        await self._budget.acquire(amount)
        try:
            found = dict(await asyncio.gather(*map(one, refs)))
        except BaseException:
            self._budget.release(amount)
            raise
        self._budget.hold(amount)
        return found

    def get_now(self, refs: Collection[BlobRef]) -> Mapping[str, bytes]:
        """`get`, for code without a loop."""
        found = {ref.name: self._objects.get_now(ref.name) for ref in refs}
        for ref in refs:
            _require_intact(ref, found[ref.name])
        return found

    async def remove(self, tag: str) -> None:
        """Remove all blobs of the task with that tag."""
        await self._objects.remove(tag)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._objects.aclose()

    def _taken_out(self, operation: Operation[Any]) -> tuple[Sequence[Argument], dict[str, bytes]]:
        tag, arguments = tag_in(operation.keys), list(operation.args)
        blobs: dict[str, bytes] = {}
        for n, one in enumerate(arguments):
            if isinstance(one, Encoded) and len(one) > self.threshold:
                if one.packed is None:
                    arguments[n], parts = take_out(one, tag, self.threshold)
                    blobs |= parts
                else:
                    arguments[n] = one.packed
        changed = any(new is not old for new, old in zip(arguments, operation.args, strict=True))
        return arguments if changed else operation.args, blobs


def blobs_of(settings: Settings) -> Blobs | None:
    """Return the blob store of a deployment, or None if none is configured.

    Raises:
        ConfigError: `blob_url` can't be used.
    """
    if settings.blob_url is None:
        return None
    keys = Keys(settings.key_prefix)
    return Blobs(ObjectStore(f"{settings.blob_url.rstrip('/')}/{settings.key_prefix}"), keys, settings.blob_threshold)


def read(operation: Operation[T], reply: Any, available: Mapping[str, bytes]) -> tuple[T, Collection[BlobRef]]:
    """Parse a reply. Return the result, and the blobs that are missing to complete it."""
    reading = Reading(available)
    before = READING.set(reading if operation.resolve_blobs else None)
    try:
        return operation.parse(reply), reading.missing.values()
    finally:
        READING.reset(before)


def require(blobs: Blobs | None) -> Blobs:
    """Return `blobs`, which a reply refers to.

    Raises:
        BlobsUnavailable: this process knows no object store.
    """
    if blobs is None:
        raise BlobsUnavailable(
            "a part is in an object store that this process does not know: set A2A_BLOB_URL as where it was written"
        )
    return blobs


def register_blobs(keys: Keys, tag: str) -> Operation[bool]:
    """The task with that tag has blobs, or will; whether that is new: then none that was written before is kept.

    Its parse raises BlobsExpired while the folder of a task that is gone, and had the same tag, is being removed.
    """

    def parse(reply: bytes) -> bool:
        if reply == b"removing":
            raise BlobsExpired("the blobs of a task that is gone, and was called the same, are being removed")
        return reply == b"new"

    return Operation(script("register_blobs"), [keys.blobs, keys.orphaned_blobs], [tag, ORPHAN_AFTER_US], parse)


def _packed(operation: Operation[T], arguments: Sequence[Argument]) -> Operation[T]:
    for one, packed in zip(operation.args, arguments, strict=True):
        if isinstance(one, Encoded) and isinstance(packed, bytes) and packed is not one:
            one.packed = packed
    return replace(operation, args=arguments)


def _require_intact(ref: BlobRef, content: bytes) -> None:
    digest = ref.name.rpartition("/")[2]
    if len(content) != ref.size or sha256(content).hexdigest() != digest:
        raise BlobsUnavailable(f"blob {ref.name} is not what was written: {len(content)} bytes of {ref.size}")
