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

from ..keys import Keys, Scope, quote_key_part
from ..operation import Operation, script

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

    return Operation(
        script("acquire_archivable"), [keys.archive, keys.archiver], [keys.prefix, limit, archiver, lease_ms], parse
    )


def remove_archived(keys: Keys, task_ids: Sequence[str]) -> Operation[int]:
    """Remove archived tasks from the store.

    A task with undelivered events is only removed from the indexes, and expires after `UNDELIVERED_RETENTION`.

    Returns:
        The number of removed tasks.
    """
    return Operation(
        script("remove_archived"),
        [keys.archive, keys.installation, keys.deliveries, keys.dead_letters],
        [keys.prefix, UNDELIVERED_RETENTION, *(quote_key_part(task_id) for task_id in task_ids)],
        int,
    )


def defer_archiving(keys: Keys, task_id: str) -> Operation[int]:
    """Set aside a task that the archive refused, so that it does not delay other tasks."""
    return Operation(script("defer_archiving"), [keys.archive, keys.archive_refused], [quote_key_part(task_id)], int)


def retry_refused(keys: Keys) -> Operation[int]:
    """Move all refused tasks back to the list of tasks to archive.

    Returns:
        The number of moved tasks.
    """
    return Operation(script("defer_archiving"), [keys.archive, keys.archive_refused], [""], int)


def update_archive_backlog(keys: Keys, cursor: str) -> Operation[tuple[str, int]]:
    """Queue the ended tasks in one page of the keyspace for the archive. If archiving is disabled, let queued tasks
    expire instead.

    Returns:
        The cursor of the next page, or "0" after the last page, and the number of changed tasks.
    """

    def parse(reply: Sequence[Any]) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    lists = [keys.installation, keys.archive, keys.archive_refused]
    return Operation(script("update_archive_backlog"), lists, [keys.prefix, cursor, PAGE], parse)


def read_archive_state(keys: Keys, *, give_up: bool = False) -> Operation[ArchiveState]:
    """Read the backlog of the archive.

    Args:
        keys: Keys of the deployment.
        give_up: True to disable archiving first. `update_archive_backlog` then lets the waiting tasks expire.
    """

    def parse(reply: Sequence[Any]) -> ArchiveState:
        on, complete, waiting, due, lag_us, refused = reply
        return ArchiveState(on == b"1", complete == b"1", waiting, due, int(lag_us) / 1e6, refused)

    lists = [keys.installation, keys.archive, keys.archive_refused]
    return Operation(script("read_archive_state"), lists, ["" if give_up else "-"], parse)
