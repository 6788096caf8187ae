"""Archive of ended tasks in a SQL database.

The table has the columns of the SDK's task table. Gateways, watchers and ``a2a doctor`` open an `Archive` with
`open_archive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from a2a.types import Task, TaskState

from ..errors import ConfigError
from ..lifecycle.references import Scope

__all__ = ["Archive", "Archived", "ArchivedPage", "Filter", "open_archive"]


@dataclass(frozen=True, slots=True)
class Archived:
    """Ended task, with its scope and the version of its last event."""

    scope: Scope
    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter for archived tasks.

    Attributes:
        scope: Scope of the tasks.
        not_after_us: Latest time of the status, in µs since 1970.
        context_id: Id of the tasks' context, or "" for any context.
        state: State of the tasks, or None for any state.
        not_before_us: Earliest time of the status, in µs since 1970, or None for no limit.
    """

    scope: Scope
    not_after_us: int
    context_id: str = ""
    state: TaskState | None = None
    not_before_us: int | None = None


@dataclass(frozen=True, slots=True)
class ArchivedPage:
    """Page of tasks, newest status first. Tasks with equal times are sorted by descending id.

    Attributes:
        tasks: Tasks on the page.
        total: Number of matching tasks on all pages.
        more: True if another page follows.
    """

    tasks: list[Task]
    total: int
    more: bool


class Archive(Protocol):
    """Archive of ended tasks.

    Each method except `aclose` raises `ArchiveUnavailable` if the database cannot be reached or fails.
    """

    async def put(self, tasks: Sequence[Archived]) -> None:
        """Store all tasks or none, replacing tasks that are already in the archive."""

    async def require_writable(self) -> None:
        """Check that the archive accepts writes, without storing a task."""

    async def read(self, scope: Scope, task_id: str) -> Archived | None:
        """Return the archived task with the id `task_id`, or None if `scope` has no such task."""

    async def page(
        self, criteria: Filter, *, size: int, cursor: tuple[int, str] | None = None, artifacts: bool = False
    ) -> ArchivedPage:
        """Return a page of the tasks that match a filter.

        Args:
            criteria: Filter for the tasks.
            size: Maximum number of tasks, or 0 to only count the tasks. A page of large tasks may have fewer tasks.
            cursor: Status time in µs and quoted id of the last task on the previous page, or None for the first page.
            artifacts: True to read the artifacts.
        """

    async def forget(self, before_us: int, limit: int) -> int:
        """Delete up to `limit` tasks with a status before `before_us`, oldest first.

        Returns:
            The number of deleted tasks.
        """

    async def aclose(self) -> None:
        """Close the connections."""


def open_archive(url: str) -> Archive:
    """Open the archive at an SQLAlchemy URL. The connection is opened on first use.

    Raises:
        ConfigError: The extra ``archive`` or the URL's driver is not installed, or the URL is invalid.
    """
    try:
        from .database import DatabaseArchive  # noqa: PLC0415 - needs an extra

        return DatabaseArchive(url)
    except ImportError as e:
        raise ConfigError(f"a2a_archive_url needs an extra: pip install 'a2a-celery[archive]' ({e})") from e
