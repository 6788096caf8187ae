"""Reads of a journal: pages for a claimed run, and a bounded part for observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...lifecycle.journal import JournalEntry, decode_entry
from ...lifecycle.references import RunRef
from ..blobs.references import has_references, header_and_size
from ..codec import journal_from
from ..keys import Keys
from ..verbs import Reply, TaskId, verb
from .commands import RunLost

JOURNAL_PAGE_BYTES = 1024 * 1024

MAX_RECORDED = 200
"""Number of entries above which `read_recorded` reads no further entries."""


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Page of a journal.

    Attributes:
        entries: Journal entries by key.
        cursor: Cursor of the next page, or "0" on the last page.
    """

    entries: Mapping[str, JournalEntry]
    cursor: str


@verb
def read_journal(keys: Keys, ref: RunRef, *, token: str, cursor: str = "0") -> Reply[JournalPage | RunLost]:
    """Read a page of the journal of a claimed run. A page may repeat entries of earlier pages."""

    def parse(reply: Sequence[Any]) -> JournalPage | RunLost:
        if reply[0] != b"page":
            return RunLost()
        return JournalPage(journal_from(reply[2], ref.task_id), reply[1].decode())

    return Reply(parse)


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """Entry of a journal with the beginning of its content.

    Attributes:
        entry: Entry whose content may be cut. The content is empty if it is a blob.
        size: Size of the complete content in bytes.
    """

    entry: JournalEntry
    size: int


@dataclass(frozen=True, slots=True)
class RecordedEntries:
    """Part of a journal.

    Attributes:
        entries: At least one entry, unless the journal is empty, in no particular order.
        count: Number of all entries of the journal.
    """

    entries: Sequence[RecordedEntry]
    count: int


@verb
def read_recorded(keys: Keys, task_id: TaskId, *, max_content: int) -> Reply[RecordedEntries]:
    """Read about `MAX_RECORDED` entries of the journal of a task of any owner, with up to `max_content` bytes of each
    content. A journal with large contents is read only up to `JOURNAL_PAGE_BYTES`."""

    def parse(reply: Sequence[Any]) -> RecordedEntries:
        count, values = reply
        fields = zip(*[iter(values)] * 4, strict=True)
        entries = {key: _recorded_entry(key.decode(), *rest) for key, *rest in fields}
        return RecordedEntries(tuple(entries.values()), count)

    return Reply(parse)


def _recorded_entry(key: str, header: bytes, size: bytes, content: bytes) -> RecordedEntry:
    if has_references(header):
        blob_header, blob_size = header_and_size(header)
        return RecordedEntry(decode_entry(key, blob_header), blob_size)
    return RecordedEntry(decode_entry(key, header + content), int(size))
