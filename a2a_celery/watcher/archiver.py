"""Carries ended tasks to the archive when their time in the store is over, and deletes those whose time there is over
too.

One watcher does it at a time, and says so in the store; the next one takes over when it is not heard of. If two do it
all the same, both write the same rows. A task leaves the store only behind its copy, so nothing is lost while the
database is away: ended tasks stay in the store as long as that takes, and the log and the figures say how far the
archive is behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

from ..archive import Archive, Archived
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ArchiveUnavailable, BlobsUnavailable
from ..store import AsyncStore, Keys, Scope
from ..store.archiving import archive_state, keep_ended, let_go, set_aside, take_ended, try_refused_again
from ..store.references import full_size, is_whole
from ..store.tasks import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action
from .figures import WatcherFigures

logger = logging.getLogger(__name__)

BATCH = 50
PORTION_BYTES = 32 * 1024 * 1024
"""Tasks that are larger together, large parts included, are copied one portion after another; a single one may be
larger."""

LEASE_MS = 60_000
"""ms that the others leave it to the one that archives: more than a batch may take."""

REST = 1.0
LONGEST_REST = 10.0
"""Seconds between two tries of a database that is away: at first, and in the end."""

TRY_REFUSED_EVERY = 600.0
"""Seconds after which what was set aside is tried again."""

FORGET_EVERY = 60.0
FORGET_AT_ONCE = 500
"""Rows that one statement deletes: a large one would hold up readers, and replicas."""


class Archiver:
    """One look at what is due. `retention` is how long the archive keeps a task, in seconds; None: for ever."""

    name = "archiver"
    every = 1.0

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        archive: Archive,
        retention: int | None,
        figures: WatcherFigures | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._keys = keys
        self._archive = archive
        self._retention = retention
        self._figures = figures or WatcherFigures()
        self._clock = clock
        self._who = uuid4().hex
        self._begin_at = 0.0
        self._rest = 0.0
        self._not_before = 0.0
        self._forget_at = 0.0

    async def tick(self) -> None:
        """Archives all that is due, a batch at a time.

        Raises:
            ArchiveUnavailable: the database is away; says how much waits for it. It is left alone for a while then.
        """
        if self._clock.monotonic() < self._not_before:
            return
        if self._clock.monotonic() >= self._begin_at:
            await self._begin()
        try:
            while await self._archived_a_batch():
                self._figures.goes_on(self.name)
        except ArchiveUnavailable as e:
            self._rest = min(max(REST, self._rest * 2), LONGEST_REST)
            self._not_before = self._clock.monotonic() + self._rest
            state = await self._store.run(archive_state(self._keys))
            text = (
                f"{e}; {state.due} ended tasks wait for it, the oldest for {state.behind:.0f} s longer than it should"
            )
            raise ArchiveUnavailable(text) from e
        self._rest = 0.0

    async def _begin(self) -> None:
        """What ended before ended tasks went to an archive goes there too, and what the database refused is tried
        again."""
        await self._store.run(try_refused_again(self._keys))
        if not (await self._store.run(archive_state(self._keys))).complete:
            cursor, kept = "0", 0
            while True:
                cursor, more = await self._store.run(keep_ended(self._keys, cursor))
                kept += more
                self._figures.goes_on(self.name)
                if cursor == "0":
                    break
            logger.info("%d tasks that had ended before will be archived too", kept, extra=about(Action.ARCHIVE_BEGUN))
        self._begin_at = self._clock.monotonic() + TRY_REFUSED_EVERY

    async def _archived_a_batch(self) -> bool:
        """Whether there may be more."""
        due = await self._store.run(take_ended(self._keys, who=self._who, limit=BATCH, lease_ms=LEASE_MS))
        if due.tasks is None:
            return False
        async for portion in self._portions(due.tasks):
            taken = [one for one in await asyncio.gather(*map(self._whole, portion)) if one is not None]
            if taken:
                await self._put(taken)
            self._figures.goes_on(self.name)
        await self._forget(due.now_us)
        return len(due.tasks) == BATCH

    async def _portions(self, due: Sequence[tuple[str, Scope]]) -> AsyncIterator[list[Archived]]:
        """Those that are still there, without their large parts: so many at a time as a process may have in hand with
        these."""
        portion: list[Archived] = []
        size = 0
        for task_id, scope in due:
            found = await self._store.run(read_task(self._keys, scope, task_id, whole=False))
            if found is None:
                continue
            amount = full_size(found[0])
            if portion and size + amount > PORTION_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(Archived(scope, *found))
            size += amount
        if portion:
            yield portion

    async def _whole(self, one: Archived) -> Archived | None:
        """The task with its large parts; None if it is gone, or is set aside because these can't be read."""
        if is_whole(one.task):
            return one
        try:
            found = await self._store.run(read_task(self._keys, one.scope, one.task.id))
        except BlobsUnavailable as e:
            why = f"can't be copied to the archive, its large parts are not to be had: {e}"
            await self._set_aside(one.task.id, why)
            return None
        return None if found is None else Archived(one.scope, *found)

    async def _set_aside(self, task_id: str, why: str) -> None:
        await self._store.run(set_aside(self._keys, task_id))
        said = about(Action.ARCHIVE_REFUSED, task=task_id)
        logger.error("task %s stays in the store for now: it %s", task_id, why, extra=said)

    async def _put(self, taken: list[Archived]) -> None:
        try:
            await self._archive.put(taken)
        except ArchiveUnavailable:
            taken = await self._one_by_one(taken)
        await self._store.run(let_go(self._keys, [one.task.id for one in taken]))

    async def _one_by_one(self, tasks: list[Archived]) -> list[Archived]:
        """Those that the database takes. What it refuses although it takes others is set aside."""
        taken: list[Archived] = []
        for one in tasks:
            try:
                await self._archive.put([one])
            except ArchiveUnavailable as e:
                await self._archive.require_writable()  # else it is away
                await self._set_aside(one.task.id, f"is refused by the archive: {e}")
            else:
                taken.append(one)
        return taken

    async def _forget(self, now_us: int) -> None:
        if self._retention is None or self._clock.monotonic() < self._forget_at:
            return
        before_us = now_us - self._retention * 1_000_000
        while await self._archive.forget(before_us, FORGET_AT_ONCE) == FORGET_AT_ONCE:
            self._figures.goes_on(self.name)
        self._forget_at = self._clock.monotonic() + FORGET_EVERY
