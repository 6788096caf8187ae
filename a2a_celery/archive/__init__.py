"""Where ended tasks are kept after they have left the store: a table in a SQL database, the SDK's own.

Knows no Redis and no Celery. `Archive` is what gateways and watchers use; `open_archive` makes one of a URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from a2a.types import Task, TaskState

from ..errors import ConfigError
from ..store import Scope

__all__ = ["Archive", "Archived", "ArchivedPage", "Filter", "open_archive"]


@dataclass(frozen=True, slots=True)
class Archived:
    """A task that has ended, whose it is, and the number of its last event."""

    scope: Scope
    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which archived tasks are listed: those of `scope` whose status is not after `not_after_us`, and of these …

    Times are µs since the epoch, as a status has them.
    """

    scope: Scope
    not_after_us: int
    context_id: str = ""
    """"": of any."""

    state: TaskState | None = None
    not_before_us: int | None = None


@dataclass(frozen=True, slots=True)
class ArchivedPage:
    """A page of tasks, newest status first, equal times by id descending; `total` counts all that match."""

    tasks: list[Task]
    total: int
    more: bool


class Archive(Protocol):
    """Ended tasks, by whose they are. Every method raises `ArchiveUnavailable` when the database can't be reached, or
    does not do what it is asked."""

    async def put(self, tasks: Sequence[Archived]) -> None:
        """Keeps all of them, or none; one that is kept already is replaced."""

    async def require_writable(self) -> None:
        """Returns if it would keep a small task now; keeps none."""

    async def read(self, scope: Scope, task_id: str) -> Archived | None:
        """The task; None when there is none in `scope`."""

    async def page(
        self, wanted: Filter, *, size: int, cursor: tuple[int, str] | None = None, artifacts: bool = False
    ) -> ArchivedPage:
        """A page behind `cursor`: µs of the status, and id, quoted, of the last task seen; a size of 0 only counts.

        One of large tasks may have fewer than `size` of them, and `more`."""

    async def forget(self, before_us: int, limit: int) -> int:
        """Deletes at most `limit` tasks with a status before that, the oldest first; gives how many."""

    async def aclose(self) -> None:
        """Closes the connections."""


def open_archive(url: str) -> Archive:
    """The archive in the database at `url`, as SQLAlchemy writes it; it connects when it is first asked.

    Raises:
        ConfigError: the extra is missing, or the URL's driver.
    """
    try:
        from .database import DatabaseArchive  # noqa: PLC0415 - an extra: only who has an archive needs it

        return DatabaseArchive(url)
    except ImportError as e:
        raise ConfigError(f"a2a_archive_url needs an extra: pip install 'a2a-celery[archive]' ({e})") from e
