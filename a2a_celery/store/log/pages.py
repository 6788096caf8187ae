"""Paged reads of a task's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import TaskState

from ...lifecycle import EventId, LogEntry
from ..codec import log_entries, state_of
from ..keys import Keys
from ..operation import Operation, script

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
        running: True if a run of the task is open: queued, claimed, delegated or suspended.
        restored: True if the page does not continue the entries that were read before, because the store lost its
            newest writes.
    """

    entries: list[LogEntry]
    version: int
    state: TaskState
    running: bool
    restored: bool = False


def read_log(
    keys: Keys,
    task_id: str,
    after: EventId | int,
    limit: int = PAGE,
    *,
    max_bytes: int = PAGE_BYTES,
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
        resolve_blobs: False to leave blob references unresolved.
    """
    event = EventId(after) if isinstance(after, int) else after

    def parse(reply: Sequence[Any]) -> LogPage:
        version, state, phase, contents, is_restored = reply
        entries = log_entries(contents, event.version)
        return LogPage(entries, int(version), state_of(state), phase != b"", is_restored == b"1")

    arguments = [event.version, limit, event.recorded_us or "", max_bytes]
    return Operation(script("read_log"), keys.task(task_id), arguments, parse, resolve_blobs)
