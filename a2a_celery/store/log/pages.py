"""Paged reads of a task's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import TaskState

from ...lifecycle import EventId, LogEntry
from ..codec import LOG_BLOB_BYTES, log_entries, state_of
from ..keys import Keys, TaskKeys
from ..operation import Operation
from ..verbs import Digits, verb

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


@verb
def _read_log(keys: TaskKeys, after: int, limit: int, recorded_us: Digits | None, max_bytes: int) -> None:
    """`after` and `recorded_us` identify the event that precedes the page; `recorded_us` is None if the time is
    unknown. `limit` is the maximum number of entries."""


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

    call = _read_log(keys.task(task_id), event.version, limit, event.recorded_us or None, max_bytes=max_bytes)
    return Operation(*call, parse, resolve_blobs)


def read_entries(keys: TaskKeys, after: EventId, limit: int) -> Operation[Sequence[bytes]]:
    """Read the stored entries of a page, with blob references; see `read_log`."""
    call = _read_log(keys, after.version, limit, after.recorded_us or None, max_bytes=PAGE_BYTES)
    return Operation(*call, lambda reply: reply[2], resolve_blobs=False)


def read_next_entry(
    keys: Keys, task_id: str, after: EventId, *, resolve_blobs: bool = True
) -> Operation[LogEntry | None]:
    """Read the entry that follows the event `after`, or None if there is none; see `read_log`."""
    page = read_log(keys, task_id, after, limit=1, resolve_blobs=resolve_blobs)

    def parse(reply: Sequence[Any]) -> LogEntry | None:
        return next(iter(page.parse(reply).entries), None)

    return Operation(page.script, page.keys, page.args, parse, resolve_blobs)
