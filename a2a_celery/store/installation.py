"""What an operator wants to know beside the tasks: what server the store is, and which watchers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from ..clock import SYSTEM_CLOCK
from ..errors import StoreUnavailable
from .connection import SyncStore
from .keys import Keys
from .operation import Argument, Operation, script

HEARD_US = 20_000_000
"""µs without a word after which a watcher counts as gone."""


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
    ahead: float
    answered_in: float
    """Seconds."""

    used_memory: int = 0
    """Bytes."""

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
        ahead=(asked_at + answered_at) / 2 - (seconds + micros / 1e6),
        answered_in=answered_at - asked_at,
        used_memory=int(info.get("used_memory", 0)),
        unsaved=next((name for name, field in SAVING.items() if info.get(field, "ok") != "ok"), ""),
    )


def note_watcher(keys: Keys, said: str, *, schema: int, archives: bool) -> Operation[list[str]]:
    """A watcher says that it is there; `said` tells which, and must be the same each time.

    A store that was emptied since it began has its `schema` again, and its ended tasks go to an archive if they did.
    """
    arguments: list[Argument] = [said, HEARD_US, schema, int(archives)]
    return Operation(script("note_watcher"), [keys.watchers, keys.installation], arguments, _texts)


def watchers(keys: Keys) -> Operation[list[str]]:
    """What each watcher said that was heard of lately."""
    return note_watcher(keys, "", schema=0, archives=False)


def _texts(answer: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in answer]
