"""Paged reads of a journal that is too large for the reply to a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...lifecycle.journal import JournalEntry
from ..codec import journal_from
from ..keys import Keys
from ..operation import Argument, Operation, script
from .commands import RunLost, RunRef

JOURNAL_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Page of a journal.

    Attributes:
        entries: Journal entries by key.
        cursor: Cursor of the next page, or "0" on the last page.
    """

    entries: Mapping[str, JournalEntry]
    cursor: str


def read_journal(keys: Keys, ref: RunRef, *, token: str, cursor: str = "0") -> Operation[JournalPage | RunLost]:
    """Read a page of the journal of a claimed run. A page may repeat entries of earlier pages."""

    def parse(reply: Sequence[Any]) -> JournalPage | RunLost:
        if reply[0] != b"page":
            return RunLost()
        return JournalPage(journal_from(reply[2], ref.task_id), reply[1].decode())

    arguments: list[Argument] = [ref.run, token, cursor, JOURNAL_PAGE_BYTES]
    return Operation(script("read_journal"), keys.task(ref.task_id), arguments, parse)
