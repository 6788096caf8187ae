"""Commands that move ended tasks to the archive.

With an archive, the keys of an ended task do not expire. The script that ends the task adds the task to the list
`archive`, where it is due after the retention period. A watcher copies the task to the archive, and `remove_archived`
then removes the task from the store. While the archive is unavailable, ended tasks stay in the store, so no task is
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...lifecycle.references import Scope, quote_key_part
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Key, verb

UNDELIVERED_RETENTION = 2 * 24 * 3600
"""Seconds for which an archived task with undelivered events stays in the store. ListTasks does not return the stored
copy."""

PAGE = 1000
"""Approximate number of keys that one call reads."""


@dataclass(frozen=True, slots=True)
class DueArchival:
    """Ended tasks that are due for the archive.

    Attributes:
        now_us: Time of the store in µs.
        tasks: Ids and scopes of the tasks, oldest first, or None if another archiver holds the lease.
    """

    now_us: int
    tasks: list[tuple[str, Scope]] | None


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Backlog of the archive.

    Attributes:
        on: True if ended tasks are archived.
        complete: True if tasks that ended before archiving was enabled are archived too.
        waiting: Number of ended tasks that wait for the archive.
        due: Number of waiting tasks that are due.
        lag: Seconds for which the oldest waiting task has been due, or 0.
        refused: Number of tasks that the archive's database refused.
    """

    on: bool
    complete: bool
    waiting: int
    due: int
    lag: float
    refused: int


@verb
def _acquire_archivable(archive: Key, lease: Key, prefix: str, limit: int, archiver: str, lease_ms: int) -> None: ...


def acquire_archivable(keys: Keys, *, archiver: str, limit: int, lease_ms: int) -> Operation[DueArchival]:
    """Acquire up to `limit` due tasks for an archiver.

    Args:
        keys: Keys of the deployment.
        archiver: Id of the archiver.
        limit: Maximum number of tasks.
        lease_ms: Milliseconds for which no other archiver can acquire tasks.
    """

    def parse(reply: Sequence[Any]) -> DueArchival:
        now_us, *tasks = reply
        if tasks == [None]:
            return DueArchival(int(now_us), None)
        return DueArchival(int(now_us), [(task_id.decode(), Scope.parse(scope.decode())) for task_id, scope in tasks])

    call = _acquire_archivable(
        archive=keys.archive,
        lease=keys.archiver,
        prefix=keys.prefix,
        limit=limit,
        archiver=archiver,
        lease_ms=lease_ms,
    )
    return Operation(*call, parse)


@verb
def _remove_archived(
    archive: Key,
    installation: Key,
    deliveries: Key,
    dead_letters: Key,
    prefix: str,
    undelivered_retention: Digits,
    tags: Sequence[str],
) -> None:
    """`undelivered_retention` is in seconds."""


def remove_archived(keys: Keys, task_ids: Sequence[str]) -> Operation[int]:
    """Remove archived tasks from the store.

    A task with undelivered events is only removed from the indexes, and expires after `UNDELIVERED_RETENTION`.

    Returns:
        The number of removed tasks.
    """
    call = _remove_archived(
        archive=keys.archive,
        installation=keys.installation,
        deliveries=keys.deliveries,
        dead_letters=keys.dead_letters,
        prefix=keys.prefix,
        undelivered_retention=UNDELIVERED_RETENTION,
        tags=[quote_key_part(task_id) for task_id in task_ids],
    )
    return Operation(*call, int)


@verb
def _defer_archiving(archive: Key, refused: Key, tag: str | None) -> None:
    """None moves all refused tasks back."""


def defer_archiving(keys: Keys, task_id: str) -> Operation[int]:
    """Set aside a task that the archive refused, so that it does not delay other tasks."""
    return Operation(*_defer_archiving(keys.archive, keys.archive_refused, quote_key_part(task_id)), int)


def retry_refused(keys: Keys) -> Operation[int]:
    """Move all refused tasks back to the list of tasks to archive.

    Returns:
        The number of moved tasks.
    """
    return Operation(*_defer_archiving(keys.archive, keys.archive_refused, None), int)


@verb
def _update_archive_backlog(
    installation: Key, archive: Key, refused: Key, prefix: str, cursor: str, count: int
) -> None: ...


def update_archive_backlog(keys: Keys, cursor: str) -> Operation[tuple[str, int]]:
    """Queue the ended tasks in one page of the keyspace for the archive. If archiving is disabled, let queued tasks
    expire instead.

    Returns:
        The cursor of the next page, or "0" after the last page, and the number of changed tasks.
    """

    def parse(reply: Sequence[Any]) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    call = _update_archive_backlog(
        installation=keys.installation,
        archive=keys.archive,
        refused=keys.archive_refused,
        prefix=keys.prefix,
        cursor=cursor,
        count=PAGE,
    )
    return Operation(*call, parse)


@verb
def _read_archive_state(installation: Key, archive: Key, refused: Key, disables_archive: bool) -> None: ...


def read_archive_state(keys: Keys, *, give_up: bool = False) -> Operation[ArchiveState]:
    """Read the backlog of the archive.

    Args:
        keys: Keys of the deployment.
        give_up: True to disable archiving first. `update_archive_backlog` then lets the waiting tasks expire.
    """

    def parse(reply: Sequence[Any]) -> ArchiveState:
        on, complete, waiting, due, lag_us, refused = reply
        return ArchiveState(on == b"1", complete == b"1", waiting, due, int(lag_us) / 1e6, refused)

    return Operation(*_read_archive_state(keys.installation, keys.archive, keys.archive_refused, give_up), parse)
