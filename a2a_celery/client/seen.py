"""Which notifications were handled: repeats are dropped, and no event is handled by two at once.

The sender posts the events of a line in order, the next when the one before was answered with 2xx. So a version that is
not higher than the last handled one is a repeat; one number for each line is all there is to remember.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from enum import IntEnum
from typing import Any, Protocol

MAX_LINES = 100_000
"""Lines that are remembered in memory: some 25 MB."""

KEEP = 14 * 24 * 3600.0
"""Seconds a line is remembered in Redis: twice as long as its sender keeps a task, unless told otherwise."""


class Standing(IntEnum):
    """What an event is to whoever wants to handle it."""

    NEW = 0  # it is the caller's to handle, and to settle
    REPEAT = 1  # it, or a later one of its line, was handled
    IN_HAND = 2  # somebody handles an event of its line right now


class Seen(Protocol):
    """The memory of a receiver. A claim that is NEW is settled by the same `holder`, a name nobody else has."""

    async def claim(self, line: str, version: int, holder: str, hold: float) -> Standing:
        """What the event is. One that is NEW keeps its line for the holder until it is settled, or for `hold` seconds
        when it never is, because a process has died."""
        ...

    async def settle(self, line: str, version: int, holder: str, *, handled: bool) -> None:
        """Lets the line go; with `handled`, remembers that it was handled up to `version`."""
        ...


class MemorySeen:
    """`Seen` for a receiver that is one process, on one event loop.

    Remembers the `max_lines` lines that were heard of last. What it forgets, in this way or because the process ends,
    is handled again if it comes again.
    """

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._handled: OrderedDict[str, int] = OrderedDict()
        self._holders: dict[str, str] = {}

    async def claim(self, line: str, version: int, holder: str, hold: float) -> Standing:
        """See `Seen.claim`; `hold` is nothing here, since claims die with the process."""
        if self._handled.get(line, 0) >= version:
            self._handled.move_to_end(line)
            return Standing.REPEAT
        if self._holders.setdefault(line, holder) != holder:
            return Standing.IN_HAND
        return Standing.NEW

    async def settle(self, line: str, version: int, holder: str, *, handled: bool) -> None:
        """See `Seen.settle`."""
        if self._holders.get(line) == holder:
            del self._holders[line]
        if handled:
            self._handled[line] = max(version, self._handled.get(line, 0))
            self._handled.move_to_end(line)
            while len(self._handled) > self._max_lines:
                self._handled.popitem(last=False)


class RunsLua(Protocol):
    """What `RedisSeen` needs of a client: redis.asyncio's Redis and RedisCluster have it."""

    def eval(self, script: str, numkeys: int, *keys_and_args: str | int) -> Awaitable[Any]:
        """Runs a Lua script."""
        ...


CLAIM = """
-- KEYS [1] the last version handled [2] the holder    ARGV [1] version [2] holder [3] hold, ms    gives a Standing
if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 1 end
if redis.call('SET', KEYS[2], ARGV[2], 'NX', 'PX', ARGV[3]) then return 0 end
return 2
"""

SETTLE = """
-- KEYS as above    ARGV [1] version [2] holder [3] "1" if handled [4] keep, ms    gives nothing
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
if ARGV[3] == '1' and tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
end
"""


class RedisSeen:
    """`Seen` for any number of receivers: all that share a Redis, or a Redis Cluster, and a `prefix`.

    `client` stays the caller's to close. A line is forgotten `keep` seconds after its last event was handled.
    """

    def __init__(self, client: RunsLua, *, prefix: str = "a2a-seen", keep: float = KEEP) -> None:
        self._client = client
        self._prefix = prefix
        self._keep = keep

    async def claim(self, line: str, version: int, holder: str, hold: float) -> Standing:
        """See `Seen.claim`. Raises what the client raises."""
        return Standing(await self._client.eval(CLAIM, 2, *self._keys(line), version, holder, int(hold * 1000)))

    async def settle(self, line: str, version: int, holder: str, *, handled: bool) -> None:
        """See `Seen.settle`. Raises what the client raises."""
        await self._client.eval(SETTLE, 2, *self._keys(line), version, holder, int(handled), int(self._keep * 1000))

    def _keys(self, line: str) -> tuple[str, str]:
        """Both expire, and are in one slot of a cluster."""
        return f"{self._prefix}:{{{line}}}:handled", f"{self._prefix}:{{{line}}}:holder"
