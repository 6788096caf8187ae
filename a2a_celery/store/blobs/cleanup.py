"""Detection of orphaned blobs, and the start check for an object store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...errors import ConfigError, StoreUnavailable
from ...settings import Settings
from ..client.connection import AsyncStore
from ..keys import Keys
from ..verbs import Reply, no_result, verb

logger = logging.getLogger(__name__)

RECHECK_AFTER_US = 3_600_000_000
"""µs between two checks of whether a live task with blobs still exists."""

CHECKS = 1000
"""Maximum number of tasks whose existence one call checks. Most of the checked tasks exist."""

REMOVE_FOR_US = 300_000_000
"""µs for which a watcher has the exclusive right to remove a folder, before the folder is acquired again."""


@verb
def blobs_in_use(keys: Keys) -> Reply[int]:
    """Count the tasks with blobs and the orphaned blob folders that have not been removed yet."""
    return Reply(int)


@verb
def acquire_orphaned_blobs(keys: Keys, *, limit: int) -> Reply[list[str]]:
    """Acquire up to `limit` folders of blobs to remove: folders of tasks that no longer exist, and of deleted journals.

    Returns:
        Members of `Keys.orphaned_blobs`, whose folders the caller removes.
    """

    def parse(reply: Sequence[bytes]) -> list[str]:
        return [tag.decode() for tag in reply]

    return Reply(parse)


@verb
def forget_removed_blobs(keys: Keys, tags: Sequence[str]) -> Reply[None]:
    """Record that the folders `tags` were removed; see `acquire_orphaned_blobs`."""
    return Reply(no_result)


def require_blobs_in(settings: Settings, in_use: int) -> None:
    """Check that an object store is configured if tasks have blobs.

    Args:
        settings: Settings of this process.
        in_use: Result of `blobs_in_use`.

    Raises:
        ConfigError: Tasks have blobs, but no object store is configured.
    """
    if in_use and settings.blob_url is None:
        raise ConfigError(
            f"a2a_blob_url is not set, and {in_use} tasks have parts in an object store: set A2A_BLOB_URL to "
            "the value of the processes that wrote the parts, until these tasks have expired"
        )


async def require_blobs_known(store: AsyncStore, keys: Keys, settings: Settings) -> None:
    """Count the tasks with blobs and call `require_blobs_in`, unless the store is unavailable.

    Raises:
        ConfigError: Tasks have blobs, but no object store is configured.
    """
    try:
        in_use = await store.run(blobs_in_use(keys))
    except StoreUnavailable as e:
        logger.warning("skipped the check for tasks with parts in an object store: %s", e)
        return
    require_blobs_in(settings, in_use)
