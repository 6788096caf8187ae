"""The verb about logs: read the entries after a version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import TaskState

from ..lifecycle import LogEntry
from .codec import log_entries, state_of
from .keys import Keys
from .operation import Operation, script

PAGE = 256
"""Entries per read; a reader that is far behind takes several."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries in order, and where the task stands: `version` (0: there is no such task) and `state`.

    `running` says whether a run of it is queued or under way. `restored` says that the log does not continue what was
    read before: the store came back without its newest writes.
    """

    entries: list[LogEntry]
    version: int
    state: TaskState
    running: bool
    restored: bool = False


def read_log(
    keys: Keys, task_id: str, after: int, limit: int = PAGE, *, whole: bool = True, recorded_us: int | None = None
) -> Operation[LogPage]:
    """Up to `limit` entries behind version `after`; those that are not `whole` are for no one to see.

    `recorded_us` is the time of entry `after`, if the caller has read it: the page is `restored` if that has changed.
    """

    def parse(answer: Sequence[Any]) -> LogPage:
        version, state, phase, entries, restored = answer
        return LogPage(log_entries(entries, after), int(version), state_of(state), phase != b"", restored == b"1")

    return Operation(script("read_log"), keys.task(task_id), [after, limit, recorded_us or ""], parse, whole)
