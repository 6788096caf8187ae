"""Sees to runs that were lost with their workers, by their agents' crash promise.

A worker that dies stops renewing its leases. When one is over, the run is taken from it: at most once (an agent's
default) means that its task is FAILED; an agent with `max_attempts` gets the next run, on any worker. A worker that was
only paused finds that it has lost the run, can write nothing more, and cancels its agent.
"""

from __future__ import annotations

import logging
from time import monotonic

from a2a.types import Message, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from ..errors import StoreUnavailable
from ..lifecycle import Event, EventKind, LogEntry, kind_of
from ..store import AsyncStore, Keys
from ..store.log import read_log
from ..store.recovery import Lapsed, lapse_run, lapsed_runs
from ..store.tasks import read_task

logger = logging.getLogger(__name__)

BATCH = 100
FIRST_WAIT_US = 500_000
"""How long the second attempt waits, and each further one twice as long: an agent may be what kills its workers."""

LONGEST_WAIT_US = 60_000_000


class Recoverer:
    """One look at the leases that are over; each is seen to once, however many watchers look."""

    name = "recoverer"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys, grace: float = 0) -> None:
        self._store = store
        self._keys = keys
        self._grace = grace
        self._not_before = monotonic() + grace

    async def tick(self) -> None:
        """Sees to what has lapsed.

        Not right after a start, or when the store was away: for `grace` seconds, the workers come first, whose leases
        lapsed because nobody could renew them.
        """
        try:
            lapsed = await self._store.run(lapsed_runs(self._keys, limit=BATCH))
            if monotonic() < self._not_before:
                return
            for one in lapsed:
                await self._see_to(one)
        except StoreUnavailable:
            self._not_before = monotonic() + self._grace
            raise

    async def _see_to(self, lapsed: Lapsed) -> None:
        found = await self._store.run(read_task(self._keys, None, lapsed.ref.task_id))
        if found is None:
            return
        task, version = found
        left_open = await self._left_open(lapsed, version) if lapsed.attempt < lapsed.max_attempts else frozenset()
        again_us = min(FIRST_WAIT_US * 2 ** (lapsed.attempt - 1), LONGEST_WAIT_US)
        lapse = await self._store.run(
            lapse_run(self._keys, lapsed, task, version, again_us=again_us, without=left_open)
        )
        match lapse.what:
            case "again":
                logger.warning("run %s of %s was lost; run %s follows", lapsed.ref.name, lapsed.agent, lapse.next_run)
            case "failed" | "canceled":
                logger.warning("run %s of %s was lost; its task is %s", lapsed.ref.name, lapsed.agent, lapse.what)
            case _:
                pass  # somebody else saw to it, or the next look will

    async def _left_open(self, lapsed: Lapsed, version: int) -> frozenset[str]:
        """Artifacts that the lost run began and did not finish."""
        entries: list[LogEntry] = []
        while not entries or entries[-1].version < version:
            after = entries[-1].version if entries else 0
            page = await self._store.run(read_log(self._keys, lapsed.ref.task_id, after))
            if not page.entries:
                break
            entries += page.entries
        return left_open(entries)


def left_open(log: list[LogEntry]) -> frozenset[str]:
    """Artifacts begun since the newest attempt, or the newest message of the client, whose last chunk has not come."""
    opened: set[str] = set()
    for entry in log:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.last_chunk:
                opened.discard(event.artifact.artifact_id)
            elif not event.append:
                opened.add(event.artifact.artifact_id)
        elif _begins_anew(event):
            opened.clear()
    return frozenset(opened)


def _begins_anew(event: Event) -> bool:
    """Whether `event` begins a turn or an attempt."""
    if isinstance(event, TaskStatusUpdateEvent):
        return "attempt" in event.metadata.fields
    return isinstance(event, Message) and kind_of(event) is EventKind.CLIENT_MESSAGE
