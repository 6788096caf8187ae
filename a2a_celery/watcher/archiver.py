"""Watcher roles that archive ended tasks, delete expired copies from the archive, and remove deleted tasks' blobs.

One watcher archives at a time, under a lease in the store. If a lease expires and two watchers archive
concurrently, they write identical rows. A task is deleted from the store only after it was copied. While the database
is unavailable, ended tasks stay in the store, and the log and the metrics show the backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

from ..archive import Archive, Archived
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ArchiveUnavailable, BlobsUnavailable, StoreUnavailable
from ..lifecycle.references import Scope
from ..store import AsyncStore, Keys
from ..store.admin.archiving import (
    acquire_archivable,
    defer_archiving,
    read_archive_state,
    remove_archived,
    retry_refused,
    update_archive_backlog,
)
from ..store.blobs.blob_store import Blobs
from ..store.blobs.cleanup import acquire_orphaned_blobs, forget_removed_blobs
from ..store.blobs.references import full_size, is_resolved
from ..store.tasks.commands import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action
from .metrics import WatcherMetrics

logger = logging.getLogger(__name__)

ARCHIVE_BATCH = 50
PORTION_BYTES = 32 * 1024 * 1024
"""Maximum total size of the tasks, with their large parts, that are copied at once. A single task may be larger."""

LEASE_MS = 60_000
"""Lease of the archiving watcher in milliseconds. Copying a batch takes less time."""

FIRST_RETRY_DELAY = 1.0
MAX_RETRY_DELAY = 10.0
"""Maximum delay, in seconds, between two attempts while the database is unavailable. The delay doubles with each
attempt."""

REFUSED_RETRY_INTERVAL = 600.0
"""Seconds after which the tasks that the database refused are retried."""

DELETION_INTERVAL = 60.0
DELETION_BATCH = 500
"""Number of rows that one statement deletes. A larger statement would block readers and replicas."""


class Archiver:
    """Watcher role that archives ended tasks.

    Args:
        store: Connection to the store.
        keys: Names of the store's keys.
        archive: Archive to which the tasks are copied.
        retention: Seconds for which a task stays in the archive after it has ended, or None for no limit.
        metrics: Metrics of the watcher, or None for metrics that are not exported.
        clock: Clock for the delays between attempts.
        batch_size: Maximum number of tasks that are acquired at once.
        portion_bytes: Bytes of tasks that are in memory at once. A single task may be larger.
    """

    name = "archiver"
    every = 1.0

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        archive: Archive,
        retention: int | None,
        metrics: WatcherMetrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        batch_size: int = ARCHIVE_BATCH,
        portion_bytes: int = PORTION_BYTES,
    ) -> None:
        self._store = store
        self._keys = keys
        self._archive = archive
        self._retention = retention
        self._metrics = metrics or WatcherMetrics()
        self._clock = clock
        self._batch_size, self._portion_bytes = batch_size, portion_bytes
        self._id = uuid4().hex
        self._retry_refused_at = 0.0
        self._retry_delay = 0.0
        self._not_before = 0.0
        self._delete_at = 0.0

    async def tick(self) -> None:
        """Archive all due tasks, a batch at a time.

        Raises:
            ArchiveUnavailable: The database is unavailable. The message contains the number of due tasks. The next
                attempt follows after a delay.
        """
        if self._clock.monotonic() < self._not_before:
            return
        if self._clock.monotonic() >= self._retry_refused_at:
            await self._start()
        try:
            while await self._archive_batch():
                self._metrics.record_progress(self.name)
        except ArchiveUnavailable as e:
            self._retry_delay = min(max(FIRST_RETRY_DELAY, self._retry_delay * 2), MAX_RETRY_DELAY)
            self._not_before = self._clock.monotonic() + self._retry_delay
            state = await self._store.run(read_archive_state(self._keys))
            text = f"{e}; {state.due} ended tasks are due, the oldest for {state.lag:.0f} s"
            raise ArchiveUnavailable(text) from e
        self._retry_delay = 0.0

    async def _start(self) -> None:
        """Retry tasks that the database refused, and schedule tasks that ended before the archive was configured."""
        await self._store.run(retry_refused(self._keys))
        if not (await self._store.run(read_archive_state(self._keys))).complete:
            cursor, scheduled_count = "0", 0
            while True:
                cursor, count = await self._store.run(update_archive_backlog(self._keys, cursor))
                scheduled_count += count
                self._metrics.record_progress(self.name)
                if cursor == "0":
                    break
            text = "%d tasks that ended before the archive was configured will be archived"
            logger.info(text, scheduled_count, extra=about(Action.ARCHIVE_BEGUN))
        self._retry_refused_at = self._clock.monotonic() + REFUSED_RETRY_INTERVAL

    async def _archive_batch(self) -> bool:
        """Archive a batch. Return True if more tasks may be due."""
        due = await self._store.run(
            acquire_archivable(self._keys, archiver_id=self._id, limit=self._batch_size, lease_ms=LEASE_MS)
        )
        if due.tasks is None:
            return False
        async for portion in self._portions(due.tasks):
            tasks = [task for task in await asyncio.gather(*map(self._resolve_blobs, portion)) if task is not None]
            if tasks:
                await self._store_tasks(tasks)
            self._metrics.record_progress(self.name)
        await self._delete_expired(due.now_us)
        return len(due.tasks) == self._batch_size

    async def _portions(self, due: Sequence[tuple[str, Scope]]) -> AsyncIterator[list[Archived]]:
        """Yield the tasks that still exist, without their large parts, in portions of limited total size."""
        portion: list[Archived] = []
        size = 0
        for task_id, scope in due:
            archived_task = await self._read(scope, task_id, resolve_blobs=False)
            if archived_task is None:
                continue
            amount = full_size(archived_task.task)
            if portion and size + amount > self._portion_bytes:
                yield portion
                portion, size = [], 0
            portion.append(archived_task)
            size += amount
        if portion:
            yield portion

    async def _resolve_blobs(self, archived_task: Archived) -> Archived | None:
        """Return the task with its large parts, or None if the task or its large parts are unavailable."""
        if is_resolved(archived_task.task):
            return archived_task
        return await self._read(archived_task.scope, archived_task.task.id)

    async def _read(self, scope: Scope, task_id: str, *, resolve_blobs: bool = True) -> Archived | None:
        """Return a task. Set aside a task that cannot be read, and return None. Return None if the task does not exist.

        Raises:
            StoreUnavailable: The store is unavailable.
        """
        try:
            snapshot = await self._store.run(read_task(self._keys, scope, task_id, resolve_blobs=resolve_blobs))
        except BlobsUnavailable as e:
            await self._set_aside(task_id, f"its large parts are unavailable: {e}")
        except StoreUnavailable:
            raise
        except Exception as e:  # for example, Redis has evicted a key of the task
            await self._set_aside(task_id, f"the store cannot read it: {type(e).__name__}: {e}")
        else:
            return None if snapshot is None else Archived(scope, snapshot[0], snapshot[1].version)
        return None

    async def _set_aside(self, task_id: str, reason: str) -> None:
        await self._store.run(defer_archiving(self._keys, task_id))
        log_fields = about(Action.ARCHIVE_REFUSED, task=task_id)
        logger.error("task %s was not archived and stays in the store: %s", task_id, reason, extra=log_fields)

    async def _store_tasks(self, tasks: list[Archived]) -> None:
        try:
            await self._archive.put(tasks)
        except ArchiveUnavailable:
            tasks = await self._put_individually(tasks)
        await self._store.run(remove_archived(self._keys, [archived_task.task.id for archived_task in tasks]))

    async def _put_individually(self, tasks: list[Archived]) -> list[Archived]:
        """Archive the tasks one by one, and return the archived tasks. Set aside tasks that the database refuses."""
        accepted_tasks: list[Archived] = []
        for archived_task in tasks:
            reason = await self._reason_of_refusal(archived_task)
            if reason is None:
                accepted_tasks.append(archived_task)
            else:
                await self._set_aside(archived_task.task.id, f"the archive refuses it: {reason}")
        return accepted_tasks

    async def _reason_of_refusal(self, archived_task: Archived) -> ArchiveUnavailable | None:
        """Archive a task. Return the error if the database refuses the task, or None if the task is archived.

        Raises:
            ArchiveUnavailable: The database is unavailable.
        """
        error: ArchiveUnavailable | None = None
        for _ in range(2):  # an outage may end between the failed write and the check
            try:
                await self._archive.put([archived_task])
            except ArchiveUnavailable as e:
                await self._archive.require_writable()
                error = e
            else:
                return None
        return error

    async def _delete_expired(self, now_us: int) -> None:
        if self._retention is None or self._clock.monotonic() < self._delete_at:
            return
        # the store's clock may have jumped forward, and deleted rows cannot be restored
        now_us = min(now_us, round(self._clock.time() * 1_000_000))
        before_us = now_us - self._retention * 1_000_000
        while await self._archive.forget(before_us, DELETION_BATCH) == DELETION_BATCH:
            self._metrics.record_progress(self.name)
        self._delete_at = self._clock.monotonic() + DELETION_INTERVAL


REMOVAL_BATCH = 20
"""Maximum number of folders that a watcher removes concurrently."""


class BlobRemover:
    """Watcher role that removes the folders of deleted tasks from the object store."""

    name = "blob remover"
    every = 5.0

    def __init__(self, store: AsyncStore, keys: Keys, blobs: Blobs, metrics: WatcherMetrics | None = None) -> None:
        self._store = store
        self._keys = keys
        self._blobs = blobs
        self._metrics = metrics or WatcherMetrics()

    async def tick(self) -> None:
        """Remove all folders that are due. A failed removal is retried after five minutes."""
        folders = [""]
        removed_folders = folders
        while folders and len(removed_folders) == len(
            folders
        ):  # a failing object store is not called again before the next tick
            self._metrics.record_progress(self.name)
            folders = await self._store.run(acquire_orphaned_blobs(self._keys, limit=REMOVAL_BATCH))
            results = await asyncio.gather(*map(self._remove, folders))
            removed_folders = [folder for folder, is_removed in zip(folders, results, strict=True) if is_removed]
            if removed_folders:
                await self._store.run(forget_removed_blobs(self._keys, removed_folders))
                self._metrics.count_blob_removals(len(removed_folders))

    async def _remove(self, folder: str) -> bool:
        try:
            await self._blobs.remove(folder)
        except BlobsUnavailable as e:
            logger.warning("could not remove the blobs of task %s, retrying: %s", folder, e)
            return False
        return True
