"""Archive of ended tasks in a SQL database, in the SDK's table.

The package needs neither Redis nor Celery. Gateways and watchers use `Archive`; `open_archive` opens one from a URL.
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
    """An ended task with its scope and the number of its last event."""

    scope: Scope
    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter for archived tasks of `scope` whose status is not later than `not_after_us`, in µs since 1970."""

    scope: Scope
    not_after_us: int
    context_id: str = ""
    """An empty id matches any context."""

    state: TaskState | None = None
    not_before_us: int | None = None


@dataclass(frozen=True, slots=True)
class ArchivedPage:
    """Page of tasks, newest status first and equal times by descending id. `total` counts all matches."""

    tasks: list[Task]
    total: int
    more: bool


class Archive(Protocol):
    """Ended tasks by scope.

    Every method raises `ArchiveUnavailable` if the database is unreachable or fails.
    """

    async def put(self, tasks: Sequence[Archived]) -> None:
        """Store all of the tasks or none. An existing task is replaced."""

    async def require_writable(self) -> None:
        """Check that the archive accepts writes, without a lasting write."""

    async def read(self, scope: Scope, task_id: str) -> Archived | None:
        """Return the task, or None if `scope` does not have it."""

    async def page(
        self, wanted: Filter, *, size: int, cursor: tuple[int, str] | None = None, artifacts: bool = False
    ) -> ArchivedPage:
        """Return the page after `cursor`: the status time in µs and the quoted id of the last task. With size 0, only
        count.

        A page of large tasks may have fewer than `size` tasks, with `more` set.
        """

    async def forget(self, before_us: int, limit: int) -> int:
        """Delete at most `limit` tasks with a status before `before_us`, oldest first. Return their number."""

    async def aclose(self) -> None:
        """Close the connections."""


def open_archive(url: str) -> Archive:
    """Open the archive at an SQLAlchemy URL. It connects on first use.

    Raises:
        ConfigError: The extra ``archive`` or the URL's driver is not installed.
    """
    try:
        from .database import DatabaseArchive  # noqa: PLC0415 - an extra: only who has an archive needs it

        return DatabaseArchive(url)
    except ImportError as e:
        raise ConfigError(f"a2a_archive_url needs an extra: pip install 'a2a-celery[archive]' ({e})") from e
