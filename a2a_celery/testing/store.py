"""Store client for simulations, which runs the store's scripts with the time of a `SimulatedClock`.

A real server executes the unmodified scripts, except for the command that reads the server's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha1
from itertools import pairwise
from typing import Any, TypeVar

from ..errors import StoreUnavailable
from ..settings import Settings
from ..store.blobs.blob_store import blobs_of
from ..store.client.connection import TracedStore
from ..store.operation import Operation, Script
from .clock import SimulatedClock

T = TypeVar("T")

SERVER_TIME = "redis.call('TIME')"

MOVED_TIME = """\
local function moved_time()
  local t = redis.call('TIME')
  local us = tonumber(t[1]) * 1000000 + tonumber(t[2]) + {offset_us}
  return {{string.format('%.0f', math.floor(us / 1000000)), string.format('%.0f', us % 1000000)}}
end
"""


@lru_cache(maxsize=1024)
def at_offset(script: Script, offset_us: int) -> Script:
    """Return a variant of `script` whose clock is `offset_us` µs ahead of the server's clock."""
    if not offset_us or SERVER_TIME not in script.text:
        return script
    text = MOVED_TIME.format(offset_us=offset_us) + script.text.replace(SERVER_TIME, "moved_time()")
    return replace(script, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


class SimulatedStore(TracedStore):
    """Store client whose scripts use the time of `clock`.

    Args:
        settings: Settings with the URL of the server.
        clock: Clock of the simulation.
        on_recorded: Function that is called with the keys of recorded journal entries, such as ``search#1``, or None.
            The function is called after the server has the entries and before the agent receives them.
    """

    def __init__(
        self, settings: Settings, clock: SimulatedClock, on_recorded: Callable[[list[str]], None] | None = None
    ) -> None:
        super().__init__(settings.store_url, blobs_of(settings))
        self._clock = clock
        self._on_recorded = on_recorded
        self._killed = False

    def kill(self) -> None:
        """Stop sending commands and returning replies, as if the process had been killed.

        Each operation raises StoreUnavailable, as if the network had been cut, so that no coroutine waits forever.
        """
        self._killed = True

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        self._require_alive()
        reply = await super().run(self._at_offset(operation))
        if self._on_recorded is not None and (keys := journal_keys(operation)):
            self._on_recorded(keys)
        self._require_alive()
        return reply

    async def run_raw(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run_raw`."""
        self._require_alive()
        return await super().run_raw(self._at_offset(operation))

    def _at_offset(self, operation: Operation[T]) -> Operation[T]:
        return replace(operation, script=at_offset(operation.script, self._clock.offset_us))

    def _require_alive(self) -> None:
        if self._killed:
            raise StoreUnavailable("the simulated worker was killed")


def journal_keys(operation: Operation[Any]) -> list[str]:
    """Return the keys of the journal entries that `operation` writes; see ``codec.event_arguments``."""
    arguments = operation.args
    return [str(key) for kind, key in pairwise(arguments) if kind == "J"]
