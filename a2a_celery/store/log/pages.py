"""Paged reads of a task's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from a2a.types import TaskState

from ...lifecycle import EventId, LogEntry
from ..codec import LOG_BLOB_BYTES, log_entries, state_of
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Parser, Reply, TaskId, Unsent, verb

T = TypeVar("T")

PAGE = 256
"""Maximum number of entries in a page."""

PAGE_BYTES = 1024 * 1024
"""Bytes after which a page ends. A page has at least one entry and may exceed the limit by one entry."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Page of a log.

    Attributes:
        entries: Entries in order.
        version: Newest version of the log, or 0 if the task does not exist.
        state: Current state of the task.
        restored: True if the page does not continue the entries that were read before, because the store lost its
            newest writes.
    """

    entries: list[LogEntry]
    version: int
    state: TaskState
    restored: bool = False


def read_log(
    keys: Keys,
    task_id: str,
    after: EventId | int,
    limit: int = PAGE,
    *,
    max_bytes: int = PAGE_BYTES,
    blob_bytes: int = LOG_BLOB_BYTES,
    resolve_blobs: bool = True,
) -> Operation[LogPage]:
    """Read a page of the log.

    Args:
        keys: Keys of the deployment.
        task_id: Id of the task.
        after: Event or version that precedes the page. If the log does not have this event, the page is empty and
            `restored` is True.
        limit: Maximum number of entries.
        max_bytes: Bytes after which the page ends. The page has at least one entry if the log continues.
        blob_bytes: Bytes of large parts after which the page ends.
        resolve_blobs: False to leave blob references unresolved.
    """
    event = EventId(after) if isinstance(after, int) else after

    def parse(reply: Sequence[Any]) -> LogPage:
        version, state, contents, is_restored = reply
        entries = log_entries(contents, event.version, blob_bytes)
        return LogPage(entries, int(version), state_of(state), is_restored == b"1")

    return _read_log(keys, task_id, *event, limit, max_bytes, parse, resolve_blobs)


@verb
def _read_log(
    keys: Keys,
    task_id: TaskId,
    after: int,
    recorded_us: Digits,
    limit: int,
    max_bytes: int,
    parse: Unsent[Parser[T]],
    resolve_blobs: Unsent[bool],
) -> Reply[T]:
    """`after` and `recorded_us` identify the event before the page. `recorded_us` is 0 if its time is unknown."""
    return Reply(parse, resolve_blobs)


def read_entries(keys: Keys, task_id: str, after: EventId, limit: int) -> Operation[Sequence[bytes]]:
    """Read the stored entries of a page, with blob references; see `read_log`."""
    return _read_log(keys, task_id, *after, limit, PAGE_BYTES, lambda reply: reply[2], resolve_blobs=False)


def read_next_entry(
    keys: Keys, task_id: str, after: EventId, *, resolve_blobs: bool = True
) -> Operation[LogEntry | None]:
    """Read the entry that follows the event `after`, or None if there is none; see `read_log`."""

    def parse(reply: Sequence[Any]) -> LogEntry | None:
        return next(iter(log_entries(reply[2], after.version)), None)

    return _read_log(keys, task_id, *after, 1, PAGE_BYTES, parse, resolve_blobs)
