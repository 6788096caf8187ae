"""Archive in a SQL database (PostgreSQL, MySQL, MariaDB or SQLite) through SQLAlchemy."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

from a2a.types import Task, TaskStatus
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.exc import ArgumentError, DBAPIError, SAWarning, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import defer
from sqlalchemy.orm.attributes import set_committed_value

from ..errors import ArchiveUnavailable, ConfigError
from ..lifecycle.references import Scope, quote_key_part
from . import Archived, ArchivedPage, Filter
from .table import ArchivedTask, ArchiveTaskStore, at_us, column_of, owner_of

DATABASE_TIMEOUT = 15.0
"""Seconds that an operation may take, including the connection attempt."""

PAGE_BYTES = 32 * 1024 * 1024
"""Total size of tasks, in bytes, after which a page ends early."""

TASKS_PER_QUERY = 8
"""Maximum number of tasks that a query reads. Together, the tasks may exceed `PAGE_BYTES`."""


class DatabaseArchive:
    """Implementation of `Archive` in a SQL database. The table is created on first use.

    Args:
        url: SQLAlchemy URL with an asynchronous driver.
        page_bytes: Bytes of tasks after which a page ends.

    Raises:
        ConfigError: SQLAlchemy cannot parse the URL, or would ignore an option of the URL.
        ImportError: The driver is not installed.
    """

    def __init__(self, url: str, *, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SAWarning)  # of an option that the driver would ignore
                # statement parameters contain content of clients and agents, which must not appear in logs and errors
                self._engine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True)
        except SAWarning as e:
            raise ConfigError(f"a2a_archive_url = …: {str(e).partition(';')[0]}") from e
        except (ArgumentError, SQLAlchemyError) as e:
            raise ConfigError(f"a2a_archive_url = …: {type(e).__name__}, see SQLAlchemy's database URLs") from e
        self._rows = ArchiveTaskStore(self._engine)

    async def put(self, tasks: Sequence[Archived]) -> None:
        async with self._session() as session:
            for task in tasks:
                await session.merge(self._rows.record_of(task))
            await session.commit()

    async def require_writable(self) -> None:
        small = Task(id=uuid4().hex, status=TaskStatus(timestamp=Timestamp()))
        async with self._session() as session:
            session.add(self._rows.record_of(Archived(Scope(), small, 0)))
            await session.flush()
            await session.rollback()

    async def read(self, scope: Scope, task_id: str) -> Archived | None:
        conditions = (ArchivedTask.id == column_of(quote_key_part(task_id)), ArchivedTask.owner == owner_of(scope))
        async with self._session() as session:
            record = (await session.execute(select(ArchivedTask).where(*conditions))).scalar_one_or_none()
            return None if record is None else Archived(scope, self._rows.task_of(record), record.version)

    async def page(
        self, criteria: Filter, *, size: int, cursor: tuple[int, str] | None = None, artifacts: bool = False
    ) -> ArchivedPage:
        clauses = _clauses(criteria)
        async with self._session() as session:
            count = select(func.count()).select_from(ArchivedTask).where(*clauses)
            total = (await session.execute(count)).scalar_one()
            ids: Sequence[str] = []
            if size and total:
                newest_first = (ArchivedTask.last_updated.desc(), ArchivedTask.id.desc())
                query = select(ArchivedTask.id).where(*clauses).order_by(*newest_first).limit(size + 1)
                if cursor is not None:
                    query = query.where(_is_after(at_us(cursor[0]), column_of(cursor[1])))
                ids = (await session.scalars(query)).all()
            tasks, read_count = await self._tasks(session, ids[:size], artifacts)
            return ArchivedPage(tasks, total, len(ids) > read_count)

    async def forget(self, before_us: int, limit: int) -> int:
        old = select(ArchivedTask.id).where(ArchivedTask.last_updated < at_us(before_us))
        async with self._session() as session:
            # in two steps, because MySQL's DELETE accepts no subquery with a limit
            ids = (await session.scalars(old.order_by(ArchivedTask.last_updated).limit(limit))).all()
            if ids:
                await session.execute(delete(ArchivedTask).where(ArchivedTask.id.in_(ids)))
                await session.commit()
            return len(ids)

    async def aclose(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT):
                await self._make_table()
                async with self._rows.async_session_maker() as session:
                    yield session
        except TimeoutError:
            raise ArchiveUnavailable(f"the archive did not reply within {DATABASE_TIMEOUT:g} s") from None
        except (SQLAlchemyError, OSError) as e:
            raise ArchiveUnavailable(f"the archive failed: {_kind_of(e)}") from e

    async def _make_table(self) -> None:
        try:
            await self._rows.initialize()
        except DBAPIError:  # another process has just created the table
            await self._rows.initialize()
        except TypeError as e:  # the driver does not know an option of the URL, which the error names
            raise ConfigError(f"a2a_archive_url = …: the driver refuses an option: {e}") from e

    async def _tasks(self, session: AsyncSession, ids: Sequence[str], artifacts: bool) -> tuple[list[Task], int]:
        """Read tasks in the order of `ids`, until their size reaches the size of a page.

        Returns:
            The tasks, without tasks that have been deleted since, and the number of ids that were read.
        """
        tasks: list[Task] = []
        count, size, at_once = 0, 0, 1
        query = select(ArchivedTask) if artifacts else select(ArchivedTask).options(defer(_ARTIFACTS))
        while count < len(ids) and size < self._page_bytes:
            batch = ids[count : count + at_once]
            records = {record.id: record for record in await session.scalars(query.where(ArchivedTask.id.in_(batch)))}
            tasks_of_batch = [self._task(records[task_id], artifacts) for task_id in batch if task_id in records]
            session.expunge_all()
            tasks += tasks_of_batch
            count, size = count + len(batch), size + sum(task.ByteSize() for task in tasks_of_batch)
            at_once = min(at_once * 2, TASKS_PER_QUERY)
        return tasks, count

    def _task(self, record: ArchivedTask, artifacts: bool) -> Any:
        if artifacts:
            return self._rows.task_of(record)
        set_committed_value(record, "artifacts", None)
        task = self._rows.task_of(record)
        task.ClearField("artifacts")
        return task


_ARTIFACTS: Any = ArchivedTask.artifacts


def _clauses(criteria: Filter) -> list[ColumnElement[bool]]:
    clauses = [
        ArchivedTask.owner == owner_of(criteria.scope),
        ArchivedTask.last_updated <= at_us(criteria.not_after_us),
    ]
    if criteria.context_id:
        clauses.append(ArchivedTask.context_id == column_of(quote_key_part(criteria.context_id)))
    if criteria.state is not None:
        clauses.append(ArchivedTask.state == int(criteria.state))
    if criteria.not_before_us is not None:
        clauses.append(ArchivedTask.last_updated >= at_us(criteria.not_before_us))
    return clauses


def _is_after(time: datetime, task_id: str) -> ColumnElement[bool]:
    """Return the condition that a row follows the given time and id in the order of pages: newest first, equal times by
    descending id."""
    updated_at = ArchivedTask.last_updated
    return or_(updated_at < time, and_(updated_at == time, ArchivedTask.id < task_id))


def _kind_of(error: Exception) -> str:
    """Return the class names of `error` and its cause, because the text of an error may contain stored content."""
    cause = getattr(error, "orig", None)
    return f"{type(error).__name__} ({type(cause).__name__})" if cause is not None else type(error).__name__
