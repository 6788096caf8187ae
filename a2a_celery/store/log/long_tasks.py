"""Reads of tasks with a long log. The log is folded in slices, and read in pages unless the task is packed.

The log of an existing task only grows, so the entries up to a version do not change while pages are read. If the log is
missing or shorter than its snapshot (deleted, expired, archived or restored), the operation is repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ...errors import StoreUnavailable
from ...lifecycle.fold import TaskFold
from ..blobs.references import has_references
from ..codec import SLICE, FoldedTask, event_id, log_entries, omit_contents, packed_log
from ..operation import Operation, script
from .pages import PAGE_BYTES

PAGE = 125
"""Maximum number of entries that one command reads. A page takes about 0.05 ms in Redis 6.2 and 0.4 ms on the event
loop."""


class LogIncomplete(StoreUnavailable):
    """Error for a snapshot whose log was deleted or truncated."""


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
    task_fold, found_references, recorded_us = TaskFold(), False, b""
    while task_fold.version < version:
        page = packed or (
            yield _read_page(snapshot, task_fold.version, min(PAGE, version - task_fold.version), recorded_us)
        )
        if not page:
            raise LogIncomplete("the log of a task was deleted or restored while it was read")
        recorded_us = page[-1].partition(b" ")[0]
        found_references = found_references or any(has_references(content.partition(b" ")[2]) for content in page)
        for start in range(0, len(page), SLICE):
            for entry in log_entries(page[start : start + SLICE], task_fold.version):
                task_fold.add(entry)
            yield None
    assert task_fold.task is not None
    task = task_fold.task
    omit_contents(task, int(history_length), artifacts=with_artifacts == b"1")
    snapshot[:] = [FoldedTask(task, event_id(newest), found_references)]


def _read_page(snapshot: Sequence[Any], after: int, limit: int, recorded_us: bytes) -> Operation[Sequence[bytes]]:
    record, log = snapshot[8].decode(), snapshot[9].decode()
    return Operation(
        script("read_log"),
        [record, log],
        [after, limit, recorded_us, PAGE_BYTES],
        lambda reply: reply[3],
        resolve_blobs=False,
    )
