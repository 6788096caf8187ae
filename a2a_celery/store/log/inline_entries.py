"""Log entries inlined in a pub/sub notification, so that a small update needs no read of the log.

The log is authoritative. Inline entries are used only if they continue exactly after the reader's newest entry;
anything else is read from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import unpack_from

from ...lifecycle import EventId
from ..codec import log_entries, state_of
from .pages import LogPage

BUFFER_BYTES = 64 * 1024
"""Bytes buffered for a slow reader. A reader with more pending bytes reads the log."""


@dataclass(frozen=True, slots=True)
class InlineEntries:
    """Stored entries up to `version`, which leave the task in `state`.

    The entry before the first one was recorded at `before_us`, or 0 if unknown.
    """

    version: int
    state: bytes
    running: bool
    entries: Sequence[bytes]
    before_us: int = 0

    @classmethod
    def of(cls, version: int, content: bytes) -> InlineEntries:
        """Parse the entries in a notification of ``notify`` in scripts/lib."""
        state, running, before_us, packed = content.split(b" ", 3)
        entries, at = [], 0
        while at < len(packed):
            (length,) = unpack_from(">I", packed, at)
            entries.append(packed[at + 4 : at + 4 + length])
            at += 4 + length
        return cls(version, state, running == b"1", entries, int(before_us))

    @property
    def base_version(self) -> int:
        """Version of the entry before the first one."""
        return self.version - len(self.entries)

    def joined_with(self, later: InlineEntries) -> InlineEntries | None:
        """Return both if `later` continues these entries, else `later`, or None if both exceed the buffer."""
        if later._id_of(later.base_version).differs_from(self._id_of(self.version)):
            return later
        entries = [*self.entries, *later.entries]
        if sum(map(len, entries)) > BUFFER_BYTES:
            return None
        return InlineEntries(later.version, later.state, later.running, entries, self.before_us)

    def page(self, after: EventId) -> LogPage | None:
        """Return the page after the event `after`, or None if the log must be read."""
        if not self.base_version <= after.version < self.version or self._id_of(after.version).differs_from(after):
            return None
        entries = log_entries(self.entries[after.version - self.base_version :], after.version)
        return LogPage(entries, self.version, state_of(self.state), self.running)

    def _id_of(self, version: int) -> EventId:
        """Return the id of an entry, or of the one before the first."""
        if version == self.base_version:
            return EventId(version, self.before_us)
        return EventId(version, int(self.entries[version - self.base_version - 1].partition(b" ")[0]))
