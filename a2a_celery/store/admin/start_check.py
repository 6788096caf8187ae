"""Checks of the store when a process starts: reachable, readable by this release, and safe to keep tasks in."""

from __future__ import annotations

import logging
import os
from ssl import SSLError
from typing import Any

from redis.exceptions import RedisError

from ...crypto.sealing import Sealer
from ...errors import StoreUnavailable
from ...settings import Settings
from ..blobs.cleanup import require_blobs_known
from ..client.connection import AsyncStore, SyncStore
from ..keys import Keys
from ..webhooks.push_configs import require_secrets_in_use
from .schema import require_schema

logger = logging.getLogger(__name__)

SAFE_POLICY = "noeviction"


async def check_store(
    store: AsyncStore, keys: Keys, settings: Settings, sealer: Sealer | None, *, report: bool = True
) -> bool:
    """Check that this process may work with the store.

    Args:
        store: The store. An unavailable one checks its schema before its first operation.
        keys: The keys of this deployment.
        settings: The settings of this process.
        sealer: The secret keys of this process.
        report: Log one line if the store is unavailable, and one if it may evict tasks.

    Returns:
        True if the store is available.

    Raises:
        ConfigError: The store has another schema, or cannot be used with these settings.
    """
    await require_schema(store, keys, archive=settings.archive_url is not None)
    if store.first is not None:
        if report:
            logger.warning("%s; tasks wait until it is available", await _unavailable(store))
        return False
    await require_secrets_in_use(store, keys, sealer)
    await require_blobs_known(store, keys, settings)
    if report:
        try:
            warn_of_eviction(await store.redis.info("memory"))
        except RedisError as e:
            logger.info("the eviction policy of the store is unknown: %s", e)
    return True


def warn_of_eviction(info: Any) -> None:
    """Log a warning if the section ``memory`` of INFO names an eviction policy that deletes tasks."""
    policy = info.get("maxmemory_policy", SAFE_POLICY)
    if policy != SAFE_POLICY:
        logger.warning(
            "the store's maxmemory-policy is %s: Redis deletes tasks when its memory is full; set %s",
            policy,
            SAFE_POLICY,
        )


def unavailable(store: AsyncStore | SyncStore, error: BaseException) -> str:
    """Return a sentence with the address of the store and the reason why it is unavailable."""
    options = store.redis.connection_pool.connection_kwargs
    address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"the store at {address}, database {options.get('db') or 0}, is unavailable: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """Return the operating system's text of the error, or else the text of redis-py."""
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
        StoreUnavailable: The store does not reply. The text names the address and the reason.
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
    return unavailable(store, StoreUnavailable("it did not reply at first"))
