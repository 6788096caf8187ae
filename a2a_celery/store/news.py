"""What a ring brings along: the entries that are new, where they are few and small, so that a stream reads no log.

The log alone is believed all the same. News are taken where they go on exactly where a reader stands; whatever was
missed, or was too much to be sent, is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import unpack_from

from .codec import log_entries, state_of
from .log import LogPage

KEPT = 64 * 1024
"""Bytes that are kept for a reader who is not there to take them; with more he reads the log."""


@dataclass(frozen=True, slots=True)
class News:
    """Entries as they are stored; the last has number `version`, and puts the task in `state`."""

    version: int
    state: bytes
    running: bool
    entries: Sequence[bytes]

    @classmethod
    def of(cls, version: int, said: bytes) -> News:
        """As ``wake`` in scripts/prelude.lua says them."""
        state, running, packed = said.split(b" ", 2)
        entries, at = [], 0
        while at < len(packed):
            (length,) = unpack_from(">I", packed, at)
            entries.append(packed[at + 4 : at + 4 + length])
            at += 4 + length
        return cls(version, state, running == b"1", entries)

    @property
    def behind(self) -> int:
        """The version that they go on from."""
        return self.version - len(self.entries)

    def and_then(self, later: News) -> News | None:
        """Both, if they are one piece; else the later ones; None: they are too much to be kept."""
        if self.version != later.behind:
            return later
        entries = [*self.entries, *later.entries]
        return None if sum(map(len, entries)) > KEPT else News(later.version, later.state, later.running, entries)

    def page(self, after: int) -> LogPage | None:
        """What a reader is told who stands at version `after`; None: he must read."""
        if not self.behind <= after < self.version:
            return None
        entries = log_entries(self.entries[after - self.behind :], after)
        return LogPage(entries, self.version, state_of(self.state), self.running)
