"""Memory of a store, its number of tasks, and the size of a task."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import NoPermissionError, RedisError
from redis.utils import str_if_bytes

from ...errors import StoreUnavailable
from ..client.connection import SyncStore
from ..keys import Keys

SAMPLED = 2000
"""Of so many keys that SCAN gives first, which is a random sample, the share of tasks is told; a store with fewer is
counted."""

WEIGHED = 500
"""So many keys of tasks are asked for their size."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server of a store has in memory; None: this user may not ask."""

    used: int | None
    """Bytes, of everything that is in there."""

    most: int | None
    """Bytes; 0: no limit."""

    tasks: int | None
    """About so many are kept, ended ones too."""

    bytes_per_task: int | None
    """About: all keys of one, in the middle."""

    followed: int | None
    """Tasks that streams, and calls that wait, follow, as of the last second."""


def usage(store: SyncStore, keys: Keys) -> Usage:
    """What the store takes up. It costs the same however many tasks there are.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    try:
        used = most = None
        try:
            info = store.redis.info("memory")
            used, most = int(info["used_memory"]), int(info["maxmemory"])
        except NoPermissionError:
            pass
        tasks, size = _tasks(store, keys)
        return Usage(used, most, tasks, size, _followed(store, keys))
    except RedisError as e:
        raise StoreUnavailable(f"Redis did not say what it takes up: {type(e).__name__}") from e


def _tasks(store: SyncStore, keys: Keys) -> tuple[int | None, int | None]:
    """How many there are, and the size of one."""
    beginning = f"{keys.prefix}:{{".encode()
    names: set[bytes] = set()
    try:
        in_all, cursor = store.redis.dbsize(), -1
        while cursor != 0 and len(names) < SAMPLED:
            cursor, some = store.redis.scan(max(cursor, 0), count=1000)
            names.update(name if isinstance(name, bytes) else name.encode() for name in some)
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


def _followed(store: SyncStore, keys: Keys) -> int | None:
    try:
        others = [
            str_if_bytes(name).rpartition(":")[2] for name in store.redis.pubsub_channels(keys.reply_channel_loads)
        ]
        return len(store.redis.pubsub_channels(keys.notification_channels)) + sum(map(int, others))
    except NoPermissionError:
        return None
