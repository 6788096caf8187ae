"""Deduplication of notifications. Duplicates are dropped, and one consumer at a time handles a subscription's events.

A subscription is one webhook of one task. Its sender posts the events in order, each after the previous event was
acknowledged with 2xx. An event whose version is not higher than the last handled version is therefore a duplicate,
unless its time is later. A later time shows that the sender's store has lost events and reused their versions, so the
event is handled. Only the id of the last handled event is stored for each subscription.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from enum import IntEnum
from typing import Any, Protocol

from ..lifecycle import EventId

MAX_SUBSCRIPTIONS = 100_000
"""Default for the maximum number of subscriptions that `MemoryDeduplicator` remembers, in about 25 MB of memory."""

REMEMBER_SECONDS = 14 * 24 * 3600.0
"""Seconds for which `RedisDeduplicator` remembers a subscription by default, twice the default `retention` of the
sender's store."""


NONE = EventId(0)
"""Id before the first event of a subscription."""


class ClaimStatus(IntEnum):
    """Status of an event that a consumer wants to handle."""

    NEW = 0  # the caller must handle the event and settle the claim
    DUPLICATE = 1  # the event, or a later event of its subscription, was handled
    IN_PROGRESS = 2  # an event of its subscription is being handled


class Deduplicator(Protocol):
    """Store of handled events. The `holder` whose claim of an event returns NEW must settle the claim. Each holder has
    a unique name."""

    async def claim(self, subscription_id: str, event_id: EventId, holder: str, hold: float) -> ClaimStatus:
        """Claim an event.

        Args:
            subscription_id: The notification's `subscription_id`.
            event_id: The notification's `event_id`.
            holder: Unique name of the holder of the claim.
            hold: Seconds after which an unsettled claim expires, in case the holder's process has died.

        Returns:
            NEW if the holder now has the claim; otherwise DUPLICATE or IN_PROGRESS.
        """
        ...

    async def settle(self, subscription_id: str, event_id: EventId, holder: str, *, handled: bool) -> None:
        """Release the claim. If `handled` is True, record that all events up to `event_id` have been handled."""
        ...


def is_duplicate(event_id: EventId, handled: EventId) -> bool:
    """Return True if the event, or a later event of its subscription, was handled.

    If the time of one of the events is unknown, only the versions are compared.

    Args:
        event_id: Id of the event.
        handled: Id of the last handled event.
    """
    is_later = event_id.recorded_us > handled.recorded_us > 0
    return event_id.version <= handled.version and not is_later


class MemoryDeduplicator:
    """`Deduplicator` for a receiver with a single process and event loop.

    Args:
        max_subscriptions: Maximum number of subscriptions to remember. The least recently used subscription is evicted.
            After an eviction or a restart, an event that was already handled is handled again if it is redelivered.
    """

    def __init__(self, max_subscriptions: int = MAX_SUBSCRIPTIONS) -> None:
        self._max_subscriptions = max_subscriptions
        self._handled: OrderedDict[str, EventId] = OrderedDict()
        self._holders: dict[str, str] = {}

    async def claim(self, subscription_id: str, event_id: EventId, holder: str, hold: float) -> ClaimStatus:
        """Claim an event; see `Deduplicator.claim`. `hold` is ignored, because claims end with the process."""
        if is_duplicate(event_id, self._handled.get(subscription_id, NONE)):
            self._handled.move_to_end(subscription_id)
            return ClaimStatus.DUPLICATE
        if self._holders.setdefault(subscription_id, holder) != holder:
            return ClaimStatus.IN_PROGRESS
        return ClaimStatus.NEW

    async def settle(self, subscription_id: str, event_id: EventId, holder: str, *, handled: bool) -> None:
        """Settle a claim; see `Deduplicator.settle`."""
        if self._holders.get(subscription_id) == holder:
            del self._holders[subscription_id]
        if handled:
            if not is_duplicate(event_id, self._handled.get(subscription_id, NONE)):
                self._handled[subscription_id] = event_id
            self._handled.move_to_end(subscription_id)
            while len(self._handled) > self._max_subscriptions:
                self._handled.popitem(last=False)


class LuaClient(Protocol):
    """Redis client that `RedisDeduplicator` uses: `redis.asyncio.Redis` or `redis.asyncio.RedisCluster`."""

    def eval(self, script: str, numkeys: int, *keys_and_args: str | int) -> Awaitable[Any]:
        """Run a Lua script."""
        ...


IS_DUPLICATE = """
-- KEYS [1] the id of the last handled event [2] the holder    ARGV [1] version [2] recorded_us    see is_duplicate
local version, recorded_us = string.match(redis.call('GET', KEYS[1]) or '0', '^(%d+)%-?(%d*)$')
recorded_us = tonumber(recorded_us) or 0
local is_later = recorded_us > 0 and tonumber(ARGV[2]) > recorded_us
local is_duplicate = tonumber(ARGV[1]) <= tonumber(version) and not is_later
"""

CLAIM = (
    IS_DUPLICATE
    + """
-- ARGV [3] holder [4] hold, ms    returns a ClaimStatus
if is_duplicate then return 1 end
if redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4]) then return 0 end
return 2
"""
)

SETTLE = (
    IS_DUPLICATE
    + """
-- ARGV [3] holder [4] "1" if handled [5] the event's id [6] keep, ms    returns nil
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
if ARGV[4] == '1' and not is_duplicate then redis.call('SET', KEYS[1], ARGV[5], 'PX', ARGV[6]) end
"""
)


class RedisDeduplicator:
    """`Deduplicator` for any number of receivers that share a Redis server or cluster.

    Args:
        client: Redis client. The caller must close it.
        prefix: Prefix of the keys.
        keep: Seconds for which a subscription is remembered after its last handled event.
    """

    def __init__(self, client: LuaClient, *, prefix: str = "a2a-deduplication", keep: float = REMEMBER_SECONDS) -> None:
        self._client = client
        self._prefix = prefix
        self._keep = keep

    async def claim(self, subscription_id: str, event_id: EventId, holder: str, hold: float) -> ClaimStatus:
        """Claim an event; see `Deduplicator.claim`.

        Raises:
            redis.RedisError: The server is unavailable, or refuses the script.
        """
        arguments = (*event_id, holder, int(hold * 1000))
        return ClaimStatus(await self._client.eval(CLAIM, 2, *self._keys(subscription_id), *arguments))

    async def settle(self, subscription_id: str, event_id: EventId, holder: str, *, handled: bool) -> None:
        """Settle a claim; see `Deduplicator.settle`.

        Raises:
            redis.RedisError: The server is unavailable, or refuses the script.
        """
        arguments = (*event_id, holder, int(handled), str(event_id), int(self._keep * 1000))
        await self._client.eval(SETTLE, 2, *self._keys(subscription_id), *arguments)

    def _keys(self, subscription_id: str) -> tuple[str, str]:
        return f"{self._prefix}:{{{subscription_id}}}:handled", f"{self._prefix}:{{{subscription_id}}}:holder"
