"""Journal of a turn: the results that an agent recorded, so that later runs do not repeat finished work.

A journal belongs to one turn and to the turns that answer its questions. It is a map of keys to entries. The runs of
the turn write entries together with their events, under the same fence, and each run receives all entries with its
claim. A later entry with the same key replaces the earlier one.

An entry has a kind, which says what recorded it, and a form, which says how its content is encoded. Both are text that
the recorder chooses, without a meaning for the store. A key belongs to one kind: a recorder that finds an entry of
another kind under its key runs in other code than the code that wrote the entry. See
``execution/agents/durable_steps.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .events import Event
from .execution import Step


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Entry of a journal.

    Attributes:
        key: Name of the entry with its ordinal, for example ``fetch#1``.
        kind: What recorded the entry, for example ``step``.
        form: Encoding of `content`, for example ``json``.
        content: The recorded value.
        position: Position among the entries that the agent's own asyncio task or thread recorded, from 1. 0 for an
            entry of another asyncio task or thread, which has no fixed order.
    """

    key: str
    kind: str
    form: str
    content: bytes = field(repr=False)
    position: int = 0


RunRecord = Event | Step | JournalEntry
"""Element of a batch that a run writes: an event of the log, a step of the execution, or an entry of the journal."""


def encode_entry(entry: JournalEntry) -> bytes:
    """Return the stored form of `entry` without its key: a line of JSON, then the content."""
    header = json.dumps([entry.kind, entry.form, entry.position], separators=(",", ":"))
    return header.encode() + b"\n" + entry.content


def decode_entry(key: str, stored: bytes) -> JournalEntry:
    """Return the entry with that key from its stored form."""
    header, _, content = stored.partition(b"\n")
    kind, form, position = json.loads(header)
    return JournalEntry(key, kind, form, content, position)
