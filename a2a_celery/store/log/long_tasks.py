"""Reads of tasks with a long log. The log is folded in slices, and read in pages unless the task is packed.

The log of an existing task only grows, so the entries up to a version do not change while pages are read. If the log is
missing or shorter than its snapshot (deleted, expired, archived or restored), the operation is repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from ...errors import StoreUnavailable
from ...lifecycle import EventId
from ...lifecycle.fold import TaskFold
from ..blobs.references import has_references
from ..codec import DECODE_ERRORS, SLICE, FoldedTask, UnreadableTask, event_id, log_entries, omit_contents, packed_log
from ..keys import Keys
from ..operation import Operation
from .pages import read_entries

PAGE = 125
"""Maximum number of entries that one command reads. A page takes about 0.05 ms in Redis 6.2 and 0.4 ms on the event
loop."""


class LogIncomplete(StoreUnavailable):
    """Error for a snapshot whose log was deleted or truncated."""


@contextmanager
def mark_unreadable(snapshot: list[Any]) -> Iterator[None]:
    """Replace `snapshot` with an `UnreadableTask` if its log has another form, so that a list contains other tasks."""
    try:
        yield
    except (ResponseError, *DECODE_ERRORS) as e:
        snapshot[:] = [UnreadableTask(f"the log of a task has an unknown form: {e}")]


def fold_log(snapshot: list[Any]) -> Generator[Operation[Any] | None, Any, None]:
    """Fold the log of a snapshot without contents or with a long log. The snapshot becomes a single `FoldedTask`.

    The generator yields operations to run, and receives their replies. A yielded None lets the event loop run other
    tasks.

    Raises:
        LogIncomplete: The log lacks entries of the snapshot.
    """
    packed = packed_log(snapshot)
    newest, history_length, with_artifacts = snapshot[:3] if packed is not None else (snapshot[2], *snapshot[6:8])
    version = event_id(newest).version
    task_fold, found_references, recorded_us = TaskFold(), False, 0
    while task_fold.version < version:
        page = packed or (
            yield _read_page(snapshot, EventId(task_fold.version, recorded_us), min(PAGE, version - task_fold.version))
        )
        if not page:
            raise LogIncomplete("the log of a task was deleted or restored while it was read")
        recorded_us = int(page[-1].partition(b" ")[0])
        found_references = found_references or any(has_references(content.partition(b" ")[2]) for content in page)
        for start in range(0, len(page), SLICE):
            for entry in log_entries(page[start : start + SLICE], task_fold.version):
                task_fold.add(entry)
            yield None
    task = task_fold.task
    assert task is not None
    omit_contents(task, int(history_length), artifacts=with_artifacts == b"1")
    snapshot[:] = [FoldedTask(task, event_id(newest), found_references)]


def _read_page(snapshot: Sequence[Any], after: EventId, limit: int) -> Operation[Sequence[bytes]]:
    task_id, record = snapshot[0].decode(), snapshot[8].decode()
    prefix = record.rpartition(":{")[0]
    return read_entries(Keys(prefix), task_id, after, limit)
