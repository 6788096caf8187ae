"""Start checks of the store, the description of the store's server, and heartbeats.

When a process starts, it checks that the store has the schema of this release and can be used with the settings of the
process. The process logs a warning if the store is unavailable or may evict tasks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLError
from typing import Any, TypeVar

from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError

from ...clock import SYSTEM_CLOCK
from ...crypto.sealing import Sealer, require_secrets
from ...errors import StoreUnavailable
from ...settings import Settings
from ..blobs.cleanup import require_blobs_known
from ..client.connection import AsyncStore, SyncStore
from ..client.redis_clients import NO_PRIMARY
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Key, Parser, Reply, Unsent, verb
from .schema import SCHEMA, require_schema

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAFE_POLICY = "noeviction"


async def check_store(
    store: AsyncStore, keys: Keys, settings: Settings, sealer: Sealer | None, *, report: bool = True
) -> bool:
    """Check that this process may work with the store.

    Args:
        store: Store client. If the store is unavailable, its schema is checked before the first operation.
        keys: Keys of the deployment.
        settings: Settings of this process.
        sealer: Secret keys of this process, or None.
        report: True to log a warning if the store is unavailable or may evict tasks.

    Returns:
        True if the store is available.

    Raises:
        ConfigError: The store has a different schema, or cannot be used with these settings.
    """
    await require_schema(store, keys, archive=settings.archive_url is not None)
    if store.first is not None:
        if report:
            logger.warning("%s; tasks wait until it is available", await _unavailable(store))
        return False
    await _require_secrets_in_use(store, keys, sealer)
    await require_blobs_known(store, keys, settings)
    if report:
        try:
            warn_of_eviction(await store.redis.info("memory"))
        except RedisError as e:
            logger.info("the eviction policy of the store is unknown: %s", e)
    return True


async def _require_secrets_in_use(store: AsyncStore, keys: Keys, sealer: Sealer | None) -> None:
    """Check that `sealer` has the secrets that seal stored data, unless the store is unavailable.

    Raises:
        ConfigError: `sealer` lacks a secret. The message describes the remedy.
    """
    try:
        in_use = await store.run(secrets_in_use(keys))
    except StoreUnavailable as e:
        logger.warning("skipped the check that a2a_secret_key has all secrets in use: %s", e)
        return
    require_secrets(sealer, in_use)


@verb
def secrets_in_use(keys: Keys) -> Reply[frozenset[str]]:
    """Read the fingerprints of the secrets that seal stored data."""

    def parse(reply: Sequence[bytes]) -> frozenset[str]:
        return frozenset(fingerprint.decode() for fingerprint in reply)

    return Reply(parse)


def warn_of_eviction(info: Any) -> None:
    """Log a warning if Redis may evict tasks. `info` is the section ``memory`` of INFO."""
    policy = info.get("maxmemory_policy", SAFE_POLICY)
    if policy != SAFE_POLICY:
        logger.warning(
            "the store's maxmemory-policy is %s: Redis deletes tasks when its memory is full; set %s",
            policy,
            SAFE_POLICY,
        )


def unavailable(store: AsyncStore | SyncStore, error: BaseException) -> str:
    """Return a message with the address of the store and the reason why the store is unavailable."""
    options = store.redis.connection_pool.connection_kwargs
    address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"the store at {address}, database {options.get('db') or 0}, is unavailable: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """Return the reason for the error of an unavailable store: the operating system's message, or redis-py's message if
    there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            is_system_error = cause.errno > 0 and not isinstance(cause, SSLError)
            return os.strerror(cause.errno) if is_system_error else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error.__cause__ or error).rstrip(".")


async def require_reachable(store: AsyncStore) -> None:
    """Check that the store replies.

    Raises:
        StoreUnavailable: The store does not reply. The message contains the address and the reason.
    """
    try:
        await store.ping()
    except StoreUnavailable as e:
        raise StoreUnavailable(unavailable(store, e)) from e


async def _unavailable(store: AsyncStore) -> str:
    try:
        await require_reachable(store)
    except StoreUnavailable as e:
        return str(e)
    return unavailable(store, StoreUnavailable("Redis did not reply to the first request"))


ANNOUNCEMENT_TTL_US = 20_000_000
"""µs without a heartbeat after which a watcher or an announced worker counts as stopped."""

SAVING = {"the append-only file": "aof_last_write_status", "a snapshot": "rdb_last_bgsave_status"}
"""Fields of INFO that contain the status of the last save, by kind of persistence."""


@dataclass(frozen=True, slots=True)
class Server:
    """Redis or Valkey server of a store.

    Attributes:
        kind: "Redis" or "Valkey".
        identity: Id of the database, which is the same for two clients only if they use the same database of the same
            server process.
        primary: True if the server is not a replica.
        evicts: ``maxmemory-policy`` of the server.
        max_memory: Memory limit in bytes, or 0 if there is no limit.
        append_only: True if the server writes an append-only file.
        clock_offset: Seconds by which the clock of this process is ahead of the server's clock.
        answered_in: Seconds that the server took to reply.
        used_memory: Used memory in bytes.
        replicas: Number of connected replicas.
        unsaved: Kind of persistence whose last save failed, or "".
    """

    kind: str
    version: str
    identity: str
    primary: bool
    evicts: str
    max_memory: int
    append_only: bool
    clock_offset: float
    answered_in: float
    used_memory: int = 0
    replicas: int = 0
    unsaved: str = ""


def server_of(store: SyncStore) -> Server:
    """Return a description of the server of `store`.

    Raises:
        StoreUnavailable: The server cannot be reached, or refuses INFO.
    """
    try:
        store.redis.ping()  # connect first, so that each call below is one round trip
        asked_at = SYSTEM_CLOCK.time()
        seconds, micros = store.redis.time()
        answered_at = SYSTEM_CLOCK.time()
        info: dict[str, Any] = store.redis.info()
    except MasterNotFoundError as e:  # its text contains the settings of the connections
        raise StoreUnavailable(NO_PRIMARY) from e
    except RedisError as e:
        raise StoreUnavailable(f"{type(e).__name__}: {e}".rstrip(".")) from e
    kind, version = product_of(info)
    database = store.redis.connection_pool.connection_kwargs.get("db") or 0
    return Server(
        kind=kind,
        version=version,
        identity=f"{info.get('run_id', '')}/{database}",
        primary=info.get("role") == "master",
        evicts=str(info.get("maxmemory_policy", "")),
        max_memory=int(info.get("maxmemory", 0)),
        append_only=bool(info.get("aof_enabled")),
        clock_offset=(asked_at + answered_at) / 2 - (seconds + micros / 1e6),
        answered_in=answered_at - asked_at,
        used_memory=int(info.get("used_memory", 0)),
        replicas=int(info.get("connected_slaves", 0)),
        unsaved=next((name for name, field in SAVING.items() if info.get(field, "ok") != "ok"), ""),
    )


def product_of(info: Mapping[str, Any]) -> tuple[str, str]:
    """Return the product ("Redis" or "Valkey") and the version of a server from its reply to INFO."""
    is_valkey = info.get("server_name") == "valkey"
    return "Valkey" if is_valkey else "Redis", str(info.get("valkey_version" if is_valkey else "redis_version", "0"))


@verb
def record_heartbeat(
    keys: Keys,
    processes: Key,
    announcement: str,
    parse: Unsent[Parser[T]],
    *,
    archives: bool = False,
    withdraws: bool = False,
    ttl_us: int = ANNOUNCEMENT_TTL_US,
    schema: Digits = SCHEMA,
) -> Reply[T]:
    """Record the heartbeat of a process in the list `processes`. An emptied store receives the `schema`. See
    `announce_watcher` for the other arguments.

    Returns:
        The result of `parse` for the valid announcements of the list.
    """
    return Reply(parse)


def announce_watcher(
    keys: Keys, announcement: str, *, archives: bool, withdraws: bool = False, ttl_us: int = ANNOUNCEMENT_TTL_US
) -> Operation[list[str]]:
    """Record the heartbeat of a watcher.

    If the store was emptied, the heartbeat restores the schema and, with `archives`, enables archiving again.

    Args:
        keys: Keys of the deployment.
        announcement: Description of the watcher, which is the same in each call, or "" to only read the announcements.
        archives: True if the process archives ended tasks.
        withdraws: True to delete the heartbeat of `announcement` instead.
        ttl_us: Time for which a heartbeat is valid, in µs.

    Returns:
        The announcements of all watchers with a recent heartbeat.
    """
    return record_heartbeat(
        keys, keys.watchers, announcement, _texts, archives=archives, withdraws=withdraws, ttl_us=ttl_us
    )


def watchers(keys: Keys) -> Operation[list[str]]:
    """Read the announcements of the watchers with a recent heartbeat."""
    return record_heartbeat(keys, keys.watchers, "", _texts)


def announce_worker(keys: Keys, announcement: str) -> Operation[list[str]]:
    """Announce a worker that Celery's remote control cannot reach.

    The announcement expires after `ANNOUNCEMENT_TTL_US`.

    Returns:
        The announcements of all workers that remote control cannot reach.
    """
    return record_heartbeat(keys, keys.workers, announcement, _texts)


def announced_workers(keys: Keys) -> Operation[list[str]]:
    """Read the unexpired announcements of workers that remote control cannot reach."""
    return announce_worker(keys, "")


def _texts(reply: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in reply]
