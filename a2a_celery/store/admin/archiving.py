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

from ...lifecycle.references import Scope
from ..keys import Keys, Quoted
from ..operation import Operation
from ..verbs import Reply, verb

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
def acquire_archivable(keys: Keys, *, archiver_id: str, limit: int, lease_ms: int) -> Reply[DueArchival]:
    """Acquire up to `limit` due tasks for an archiver.

    Args:
        keys: Keys of the deployment.
        archiver_id: Id of the archiver.
        limit: Maximum number of tasks.
        lease_ms: Milliseconds for which no other archiver can acquire tasks.
    """

    def parse(reply: Sequence[Any]) -> DueArchival:
        now_us, *tasks = reply
        if tasks == [None]:
            return DueArchival(int(now_us), None)
        return DueArchival(int(now_us), [(task_id.decode(), Scope.parse(scope.decode())) for task_id, scope in tasks])

    return Reply(parse)


@verb
def remove_archived(keys: Keys, task_ids: Sequence[Quoted]) -> Reply[int]:
    """Remove archived tasks from the store.

    A task with undelivered events is only removed from the indexes, and expires after `UNDELIVERED_RETENTION`.

    Returns:
        The number of removed tasks.
    """
    return Reply(int)


@verb
def defer_archiving(keys: Keys, task_id: Quoted | None) -> Reply[int]:
    """Set aside a task that the archive refused, so that it does not delay other tasks. None moves all
    refused tasks back; see `retry_refused`."""
    return Reply(int)


def retry_refused(keys: Keys) -> Operation[int]:
    """Move all refused tasks back to the list of tasks to archive.

    Returns:
        The number of moved tasks.
    """
    return defer_archiving(keys, None)


@verb
def update_archive_backlog(keys: Keys, cursor: str) -> Reply[tuple[str, int]]:
    """Queue the ended tasks in one page of the keyspace for the archive. If archiving is disabled, let queued tasks
    expire instead.

    Returns:
        The cursor of the next page, or "0" after the last page, and the number of changed tasks.
    """

    def parse(reply: Sequence[Any]) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    return Reply(parse)


@verb
def read_archive_state(keys: Keys, *, give_up: bool = False) -> Reply[ArchiveState]:
    """Read the backlog of the archive.

    Args:
        keys: Keys of the deployment.
        give_up: True to disable archiving first. `update_archive_backlog` then lets the waiting tasks expire.
    """

    def parse(reply: Sequence[Any]) -> ArchiveState:
        on, complete, waiting, due, lag_us, refused = reply
        return ArchiveState(on == b"1", complete == b"1", waiting, due, int(lag_us) / 1e6, refused)

    return Reply(parse)
