"""The installation beside its tasks: the server of the store, its watchers, and workers without remote control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from ...clock import SYSTEM_CLOCK
from ...errors import StoreUnavailable
from ..client.connection import SyncStore
from ..keys import Keys
from ..operation import Argument, Operation, script

ANNOUNCEMENT_TTL_US = 20_000_000
"""µs without a word after which a watcher or an announced worker counts as gone."""


SAVING = {"the append-only file": "aof_last_write_status", "a snapshot": "rdb_last_bgsave_status"}
"""What INFO says of how it last went."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server behind a store. `identity` is the same for all who use the same database of the same process; `ahead`
    is by how many seconds the clock of who asked is ahead of its own."""

    kind: str
    version: str
    identity: str
    primary: bool
    cluster: bool
    evicts: str
    """The ``maxmemory-policy``."""

    max_memory: int
    """Bytes; 0: no limit."""

    append_only: bool
    clock_offset: float
    answered_in: float
    """Seconds."""

    used_memory: int = 0
    """Bytes."""

    replicas: int = 0
    """How many follow it."""

    unsaved: str = ""
    """Which way of saving to disk failed when it was last tried; "" for none."""


def server_of(store: SyncStore) -> Server:
    """The server of `store`.

    Raises:
        StoreUnavailable: it can't be reached, or does not say.
    """
    try:
        store.redis.ping()  # connected: what follows is one round trip each
        asked_at = SYSTEM_CLOCK.time()
        seconds, micros = store.redis.time()
        answered_at = SYSTEM_CLOCK.time()
        info: dict[str, Any] = store.redis.info()
    except RedisError as e:
        raise StoreUnavailable(f"{type(e).__name__}: {e}") from e
    valkey = info.get("server_name") == "valkey"
    database = store.redis.connection_pool.connection_kwargs.get("db") or 0
    return Server(
        kind="Valkey" if valkey else "Redis",
        version=str(info.get("valkey_version" if valkey else "redis_version", "0")),
        identity=f"{info.get('run_id', '')}/{database}",
        primary=info.get("role") == "master",
        cluster=bool(info.get("cluster_enabled")),
        evicts=str(info.get("maxmemory_policy", "")),
        max_memory=int(info.get("maxmemory", 0)),
        append_only=bool(info.get("aof_enabled")),
        clock_offset=(asked_at + answered_at) / 2 - (seconds + micros / 1e6),
        answered_in=answered_at - asked_at,
        used_memory=int(info.get("used_memory", 0)),
        replicas=int(info.get("connected_slaves", 0)),
        unsaved=next((name for name, field in SAVING.items() if info.get(field, "ok") != "ok"), ""),
    )


def record_heartbeat(keys: Keys, said: str, *, schema: int, archives: bool) -> Operation[list[str]]:
    """A watcher says that it is there; `said` tells which, and must be the same each time.

    A store that was emptied since it began has its `schema` again, and its ended tasks go to an archive if they did.
    """
    arguments: list[Argument] = [said, ANNOUNCEMENT_TTL_US, schema, int(archives)]
    return Operation(script("record_heartbeat"), [keys.watchers, keys.installation], arguments, _texts)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The store's time in µs, and how many jumps of its clock were corrected so far."""

    time_us: int
    corrections: int


def read_clock(keys: Keys) -> Operation[ClockReading]:
    """Return the store's time."""
    return correct_due_times(keys, 0, corrections=0, lease_us=0)


def correct_due_times(keys: Keys, jump_us: int, *, corrections: int, lease_us: int) -> Operation[ClockReading]:
    """Correct the times that were stored before the store's clock jumped by `jump_us`, negative for backward.

    Each lease begins anew. After a jump forward, pauses end as much later; after a jump backward, what is due to be
    published, delivered or looked at is due as much earlier. Nothing changes if there have been other corrections than
    the `corrections` that the caller has seen.
    """

    def parse(reply: Sequence[bytes]) -> ClockReading:
        return ClockReading(int(reply[0]), int(reply[1]))

    lists = [keys.leases, keys.pauses, keys.dispatch, keys.deliveries, keys.requested_posts, keys.canvases]
    return Operation(script("correct_clock"), [keys.installation, *lists], [jump_us, corrections, lease_us], parse)


def watchers(keys: Keys) -> Operation[list[str]]:
    """What each watcher said that was heard of lately."""
    return record_heartbeat(keys, "", schema=0, archives=False)


def announce_worker(keys: Keys, announcement: str, *, schema: int) -> Operation[list[str]]:
    """Announce a worker that Celery's remote control does not reach.

    The `announcement` expires after `ANNOUNCEMENT_TTL_US`.

    Returns:
        All announcements that are kept.
    """
    return Operation(
        script("record_heartbeat"),
        [keys.workers, keys.installation],
        [announcement, ANNOUNCEMENT_TTL_US, schema, 0],
        _texts,
    )


def announced_workers(keys: Keys) -> Operation[list[str]]:
    """Return the announcements that are kept; see `announce_worker`."""
    return announce_worker(keys, "", schema=0)


def _texts(answer: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in answer]
