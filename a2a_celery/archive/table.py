"""Table of the archive: the SDK's table of tasks, with wider columns and exact times.

The SDK's columns have the same contents as in the SDK's table, so the archive can be queried with SQL. Ids and owners
are compared byte by byte, because a collation could sort pages differently from the store or treat two owners as equal.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime, timedelta
from hashlib import sha256
from urllib.parse import unquote

from a2a.server.models import Base, TaskMixin
from a2a.server.tasks import DatabaseTaskStore
from a2a.types import Task, TaskStatus
from google.protobuf.json_format import Error as NotJson
from sqlalchemy import BigInteger, DateTime, Index, SmallInteger, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Mapped, mapped_column

from ..integrations.a2a_sdk import RowConversion
from ..lifecycle.references import Scope, quote_key_part
from . import Archived

TABLE = "a2a_archive"

LONGEST = 255
"""Maximum length of an indexed column in characters. A longer value is stored as its digest."""

_MYSQL = ("mysql", "mariadb")
_EXACT = (
    String(LONGEST)
    .with_variant(String(LONGEST, collation="C"), "postgresql")
    .with_variant(mysql.VARCHAR(LONGEST, charset="ascii", collation="ascii_bin"), *_MYSQL)
)
_MICROS = DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG = Text().with_variant(mysql.LONGTEXT(), *_MYSQL)
_EPOCH = datetime(1970, 1, 1)


class ArchivedTask(TaskMixin, Base):
    """Row of the archive: one ended task.

    `id`, `context_id` and `owner` are percent-encoded as in the keys of the store. A value of more than `LONGEST`
    characters is replaced by its digest. The column `owner` has the form ``<agent>/<tenant>/<owner>``. Times are in UTC
    without a time zone, as in the SDK's table.
    """

    __tablename__ = TABLE

    id: Mapped[str] = mapped_column(_EXACT, primary_key=True)
    context_id: Mapped[str] = mapped_column(_EXACT, nullable=False)
    owner: Mapped[str] = mapped_column(_EXACT, nullable=False)
    last_updated: Mapped[datetime] = mapped_column(_MICROS, nullable=False)
    state: Mapped[int] = mapped_column(SmallInteger, nullable=False)
    version: Mapped[int] = mapped_column(BigInteger, nullable=False)
    whole: Mapped[str | None] = mapped_column(_LONG, nullable=True)
    """Task as protobuf in Base64 if the other columns cannot represent the task exactly, or None.

    If `whole` is set, the JSON columns contain only the state and its time. The task is encoded in Base64, because not
    every driver accepts bytes.
    """

    __table_args__ = (
        Index(f"idx_{TABLE}_owner", "owner", "last_updated", "id"),
        Index(f"idx_{TABLE}_context", "owner", "context_id", "last_updated"),
        Index(f"idx_{TABLE}_last_updated", "last_updated"),
    )


def column_of(text: str) -> str:
    """Return the column value for `text`: `text` itself, or its digest if it exceeds `LONGEST` characters.

    Args:
        text: Quoted id, or scope.
    """
    return text if len(text) <= LONGEST else f"sha256~{sha256(text.encode()).hexdigest()}"


def owner_of(scope: Scope) -> str:
    """Return the value of the column ``owner`` for a scope."""
    return column_of(str(scope))


def at_us(microseconds: int) -> datetime:
    """Convert µs since 1970 to the time format of the table."""
    return _EPOCH + timedelta(microseconds=microseconds)


class ArchiveTaskStore(RowConversion, DatabaseTaskStore):
    """Subclass of the SDK's task store that creates the archive's table and converts tasks to records."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine, table_name="tasks")
        self.task_model = ArchivedTask  # type: ignore[assignment]

    def record_of(self, archived_task: Archived) -> ArchivedTask:
        task = archived_task.task
        record = self._in_json(task)
        if record is None:
            state = TaskStatus(state=task.status.state, timestamp=task.status.timestamp)
            record = self._record(Task(id=task.id, context_id=task.context_id, status=state))
            record.whole = b64encode(task.SerializeToString()).decode()
        record.owner, record.version = owner_of(archived_task.scope), archived_task.version
        return record

    def task_of(self, record: ArchivedTask) -> Task:
        """Return the task of a record. If the record was read without artifacts, only `whole` can contain artifacts."""
        if record.whole is not None:
            return Task.FromString(b64decode(record.whole))
        task: Task = self.from_row(record)
        task.id, task.context_id = unquote(record.id), unquote(record.context_id)
        return task

    def _in_json(self, task: Task) -> ArchivedTask | None:
        """Convert the task to a record with JSON columns. Return None if the record would not preserve the whole
        task."""
        try:
            record = self._record(task)
        except (NotJson, ValueError):
            return None
        same = self.task_of(record).SerializeToString(deterministic=True) == task.SerializeToString(deterministic=True)
        return record if same else None

    def _record(self, task: Task) -> ArchivedTask:
        record: ArchivedTask = self.to_row(task)
        record.id, record.context_id = column_of(quote_key_part(task.id)), column_of(quote_key_part(task.context_id))
        record.state = int(task.status.state)
        return record
