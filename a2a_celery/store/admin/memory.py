"""The memory of the store's server, and the watermark above which no new message is accepted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ..client.connection import AsyncStore
from ..operation import Operation, script

logger = logging.getLogger(__name__)

FRESH = 1.0
"""Seconds for which a reading of the memory is used."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a Redis server, in bytes. `limit` is its maxmemory, 0 for none."""

    used: int
    limit: int
    evicts: bool
    """Whether the server evicts keys at the limit instead of refusing writes."""


def read_memory() -> Operation[Memory | None]:
    """Read the server's memory. The result is None if the store's user may not call INFO."""

    def parse(reply: Sequence[bytes]) -> Memory | None:
        return Memory(int(reply[0]), int(reply[1]), reply[2] != b"1") if reply else None

    return Operation(script("read_memory"), [], [], parse)


class MemoryWatermark:
    """Share of the server's maxmemory, 0 to 1, above which the store counts as nearly full; None or 0 for none.

    A server without maxmemory is never nearly full, and neither is a server that evicts keys, which stays at its limit.
    """

    def __init__(self, store: AsyncStore, share: float | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._share = share or 0
        self._clock = clock
        self._is_reached = False
        self._read_at = float("-inf")

    async def is_reached(self) -> bool:
        """Return whether the server uses more than the share, as of at most `FRESH` seconds ago.

        One call in `FRESH` seconds reads the memory; the others return its last result. A store that is unavailable
        leaves the last result unchanged.
        """
        if not self._share or self._clock.monotonic() - self._read_at <= FRESH:
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
