"""Memory usage of a store, its memory watermark, and the number and size of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import NoPermissionError, RedisError
from redis.utils import str_if_bytes

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ..client.connection import AsyncStore, SyncStore
from ..keys import Keys
from ..verbs import Reply, verb

SAMPLED = 2000
"""Number of keys from which the number of tasks is estimated. The order of SCAN is random enough for an estimate. In a
store with fewer keys, all keys are counted."""

WEIGHED = 500
"""Maximum number of task keys whose size is measured."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Memory and tasks of a store. A value is None if the Redis user in `store_url` is not permitted to read
    it.

    Attributes:
        used: Bytes of memory that the server uses.
        max_memory: Memory limit in bytes, or 0 if there is no limit.
        tasks: Estimated number of stored tasks, including ended tasks.
        bytes_per_task: Estimated mean size of a task with all its keys, in bytes.
        followed: Number of tasks that streams and blocking calls follow, with a delay of up to a second.
    """

    used: int | None
    max_memory: int | None
    tasks: int | None
    bytes_per_task: int | None
    followed: int | None


def usage(store: SyncStore, keys: Keys, *, sample_size: int = SAMPLED) -> StoreUsage:
    """Measure the memory and the tasks of the store, in a time that does not depend on the number of tasks.

    Args:
        store: Store client.
        keys: Keys of the deployment.
        sample_size: Number of keys from which the number of tasks is estimated.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    try:
        used_memory = max_memory = None
        try:
            info = store.redis.info("memory")
            used_memory, max_memory = int(info["used_memory"]), int(info["maxmemory"])
        except NoPermissionError:
            pass
        tasks, size = _tasks(store, keys, sample_size)
        return StoreUsage(used_memory, max_memory, tasks, size, _follower_count(store, keys))
    except RedisError as e:
        raise StoreUnavailable(f"Redis did not report its memory: {type(e).__name__}") from e


def _tasks(store: SyncStore, keys: Keys, sample_size: int) -> tuple[int | None, int | None]:
    """Return the number of tasks and the mean size of a task, or None for each unknown value."""
    beginning = f"{keys.prefix}:{{".encode()
    names: set[bytes] = set()
    try:
        in_all, cursor = store.redis.dbsize(), -1
        while cursor != 0 and len(names) < sample_size:
            cursor, page = store.redis.scan(max(cursor, 0), count=1000)
            names.update(name if isinstance(name, bytes) else name.encode() for name in page)
        of_tasks = [name for name in names if name.startswith(beginning)]
        records = sum(name.endswith(b"}:task") for name in of_tasks)
        tasks = round(records * (in_all / len(names))) if cursor != 0 else records
        if not records:
            return tasks, None
        pipeline = store.redis.pipeline(transaction=False)
        for name in of_tasks[:WEIGHED]:
            pipeline.memory_usage(name)
        sizes = [size for size in pipeline.execute() if size]
        return tasks, round(sum(sizes) / max(len(sizes), 1) * len(of_tasks) / records)
    except NoPermissionError:
        return None, None


def _follower_count(store: SyncStore, keys: Keys) -> int | None:
    try:
        others = [
            str_if_bytes(name).rpartition(":")[2] for name in store.redis.pubsub_channels(keys.reply_channel_loads)
        ]
        return len(store.redis.pubsub_channels(keys.notification_channels)) + sum(map(int, others))
    except NoPermissionError:
        return None


logger = logging.getLogger(__name__)

MEMORY_FRESH_FOR = 1.0
"""Seconds for which a memory reading is reused."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a Redis server.

    Attributes:
        used: Used memory in bytes that counts toward the limit.
        limit: Value of ``maxmemory`` in bytes, or 0 if there is no limit.
    """

    used: int
    limit: int
    evicts: bool
    """True if the server evicts keys at the limit instead of refusing writes."""


@verb
def read_memory() -> Reply[Memory | None]:
    """Read the memory usage of the server.

    Returns:
        The memory, or None if the Redis user in `store_url` is not permitted to call INFO.
    """

    def parse(reply: Sequence[bytes]) -> Memory | None:
        return Memory(int(reply[0]), int(reply[1]), reply[2] != b"1") if reply else None

    return Reply(parse)


class MemoryWatermark:
    """Memory usage above which the store counts as nearly full.

    A server without ``maxmemory`` is never nearly full. A server that evicts keys never counts as nearly full either,
    because its memory normally stays at the limit.

    Args:
        store: Store whose memory is read.
        share: Share of the server's ``maxmemory``, from 0 to 1. None or 0 disables the watermark.
        clock: Clock that measures the age of a reading.
    """

    def __init__(self, store: AsyncStore, share: float | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._share = share or 0
        self._clock = clock
        self._is_reached = False
        self._read_at = float("-inf")

    async def is_reached(self) -> bool:
        """Return True if the server uses more memory than the watermark.

        The memory is read at most once in `MEMORY_FRESH_FOR` seconds. If the store is unavailable, return the last
        result.
        """
        if not self._share or self._clock.monotonic() - self._read_at <= MEMORY_FRESH_FOR:
            return self._is_reached
        self._read_at = self._clock.monotonic()
        try:
            memory = await self._store.run(read_memory())
        except StoreUnavailable as e:
            logger.warning("the memory of the store is unknown: %s", e)
            return self._is_reached
        was_reached = self._is_reached
        self._is_reached = memory is not None and not memory.evicts and 0 < memory.limit * self._share < memory.used
        if memory is not None and self._is_reached != was_reached:
            text = "the store uses %d of %d bytes: new messages are %s"
            logger.warning(text, memory.used, memory.limit, "refused" if self._is_reached else "accepted again")
        return self._is_reached
