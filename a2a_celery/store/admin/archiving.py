"""The verbs about ended tasks on their way to the archive.

With an archive, the script that ends a task sets no expiry on its keys and adds the task to the list `archive`, where
it is due after `retention`. Only `remove_archived` removes the task from the store, once its copy is in the archive. An
archive that is unavailable for a day costs memory, but no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..keys import Keys, Scope, quoted
from ..operation import Operation, script

UNDELIVERED_RETENTION = 2 * 24 * 3600
"""Seconds for which an archived task stays, unlisted, when events are owed to its webhooks: they are tried for a
day."""

PAGE = 1000
"""About so many keys are looked at in one go."""


@dataclass(frozen=True, slots=True)
class DueArchival:
    """Ended tasks that are to be archived now, the oldest first. `tasks` is None when another archiver is at it."""

    now_us: int
    tasks: list[tuple[str, Scope]] | None


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """How far the archive is behind. `on`: ended tasks go there. `complete`: also those that had ended before it was
    on."""

    on: bool
    complete: bool
    waiting: int
    """Ended tasks in the store, due or not."""

    due: int
    lag: float
    """Seconds for which the oldest has been due; 0 for none."""

    refused: int
    """Tasks that the archive's database did not take."""


def acquire_archivable(keys: Keys, *, who: str, limit: int, lease_ms: int) -> Operation[DueArchival]:
    """What is due. Nobody but `who` is given anything for `lease_ms` milliseconds."""

    def parse(answer: Sequence[Any]) -> DueArchival:
        now_us, *found = answer
        if found == [None]:
            return DueArchival(int(now_us), None)
        return DueArchival(int(now_us), [(task_id.decode(), Scope.parse(scope.decode())) for task_id, scope in found])

    return Operation(
        script("acquire_archivable"), [keys.archive, keys.archiver], [keys.prefix, limit, who, lease_ms], parse
    )


def remove_archived(keys: Keys, task_ids: Sequence[str]) -> Operation[int]:
    """The tasks leave the store: their copies are in the archive. Gives how many were still there."""
    return Operation(
        script("remove_archived"),
        [keys.archive, keys.installation, keys.deliveries, keys.dead_letters],
        [keys.prefix, UNDELIVERED_RETENTION, *(quoted(task_id) for task_id in task_ids)],
        int,
    )


def defer_archiving(keys: Keys, task_id: str) -> Operation[int]:
    """The archive does not take the task: it stays in the store and holds up no other."""
    return Operation(script("defer_archiving"), [keys.archive, keys.archive_refused], [quoted(task_id)], int)


def try_refused_again(keys: Keys) -> Operation[int]:
    """All that were set aside wait again; gives how many."""
    return Operation(script("defer_archiving"), [keys.archive, keys.archive_refused], [""], int)


def update_archive_backlog(keys: Keys, cursor: str) -> Operation[tuple[str, int]]:
    """A page of the store: ended tasks in it wait for the archive, or expire where there is none any more.

    Gives the cursor of what follows, "0" for nothing, and how many tasks were changed.
    """

    def parse(answer: Sequence[Any]) -> tuple[str, int]:
        return answer[0].decode(), int(answer[1])

    lists = [keys.installation, keys.archive, keys.archive_refused]
    return Operation(script("update_archive_backlog"), lists, [keys.prefix, cursor, PAGE], parse)


def read_archive_state(keys: Keys, *, give_up: bool = False) -> Operation[ArchiveState]:
    """Return the backlog of the archive.

    With `give_up`, tasks that end from now on are not archived. `update_archive_backlog` handles those that wait.
    """

    def parse(answer: Sequence[Any]) -> ArchiveState:
        on, complete, waiting, due, lag_us, refused = answer
        return ArchiveState(on == b"1", complete == b"1", waiting, due, int(lag_us) / 1e6, refused)

    lists = [keys.installation, keys.archive, keys.archive_refused]
    return Operation(script("read_archive_state"), lists, ["" if give_up else "-"], parse)
