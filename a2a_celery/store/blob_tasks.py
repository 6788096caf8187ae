"""The verbs about tasks with blobs: which there are, and which are gone, so that their folders can be removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..config import Settings
from ..errors import ConfigError, StoreUnavailable
from .connection import AsyncStore
from .keys import Keys
from .operation import Argument, Operation, script

logger = logging.getLogger(__name__)

LOOK_AGAIN_US = 3_600_000_000
"""µs between two looks at whether a live task still exists."""

REMOVE_FOR_US = 300_000_000
"""µs that a watcher has to remove a folder, before another tries."""


def blobs_in_use(keys: Keys) -> Operation[int]:
    """How many tasks have blobs, or folders that are to be removed."""
    return Operation(script("blobs_in_use"), [keys.blobs, keys.doomed_blobs], [], int)


def take_doomed(keys: Keys, *, limit: int) -> Operation[list[str]]:
    """The tags of up to `limit` tasks that are gone and whose folders are to be removed, now, by whoever asked."""

    def parse(answer: Sequence[bytes]) -> list[str]:
        return [tag.decode() for tag in answer]

    arguments: list[Argument] = [keys.prefix, limit, LOOK_AGAIN_US, REMOVE_FOR_US]
    return Operation(script("take_doomed"), [keys.blobs, keys.doomed_blobs], arguments, parse)


def blobs_removed(keys: Keys, tags: Sequence[str]) -> Operation[None]:
    """Their folders are removed."""
    return Operation(script("blobs_removed"), [keys.doomed_blobs], list(tags), lambda _: None)


def require_blobs_in(settings: Settings, in_use: int) -> None:
    """Raises ConfigError where `in_use` tasks have blobs, and nothing says where."""
    if in_use and settings.blob_url is None:
        raise ConfigError(
            f"a2a_blob_url is not set, and {in_use} tasks have parts in an object store: set A2A_BLOB_URL as for the "
            "processes that wrote them, until these tasks have expired"
        )


async def require_blobs_known(store: AsyncStore, keys: Keys, settings: Settings) -> None:
    """See `require_blobs_in`; what can't be asked now is not required."""
    try:
        in_use = await store.run(blobs_in_use(keys))
    except StoreUnavailable as e:
        logger.warning("whether tasks have parts in an object store is not known: %s", e)
        return
    require_blobs_in(settings, in_use)
