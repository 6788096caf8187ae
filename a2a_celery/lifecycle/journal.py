"""Journal of a turn: recorded results, so that later runs do not repeat finished work.

A journal maps keys to entries. A journal belongs to one turn and to the turns that answer the turn's questions. The
runs of these turns write entries together with events, under the same fencing token, and each run receives all entries
with its claim. An entry replaces an earlier entry with the same key.

The kind of an entry identifies its recorder, and the form of an entry identifies the encoding of its content. The store
interprets neither kind nor form. Each key is used by one kind of recorder. If a recorder finds an entry of a different
kind under its key, the agent's code has changed since the entry was written.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field
from typing import Any

from .events import Event
from .execution import Activity

REMOVED = "removed"
"""Form of an entry that removes the earlier entry with the same key."""


@dataclass(frozen=True, slots=True)
class CallExecution:
    """Execution of a recorded call, for observers.

    Attributes:
        run: Number of the run that executed the call.
        attempts: Number of attempts in the run.
        began_us: Time of the worker at which the call began, in µs since 1970.
        duration_us: µs from the beginning of the call to its result, including delays between attempts.
    """

    run: int
    attempts: int
    began_us: int
    duration_us: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Entry of a journal.

    Attributes:
        key: Name and ordinal of the entry, for example ``fetch#1``.
        kind: Recorder of the entry, for example ``step``.
        form: Encoding of `content`, for example ``json``.
        content: Recorded value.
        position: Position, from 1, among the entries that the agent's own asyncio task or thread recorded. 0 if another
            asyncio task or thread recorded the entry, because the order of such entries is not fixed.
        turn: Number of the first turn of the journal, which is part of the name of the folder for large contents in an
            object store. The number is not stored in the entry.
        answers: Indexes, in the task's history, of the answers to `Turn.ask` that the recorded call has received.
        execution: Execution of the call, or None if it is unknown or the entry does not belong to a call.
        arguments: Beginning of the arguments of the call as JSON, for observers, or "" without arguments.
    """

    key: str
    kind: str
    form: str
    content: bytes = field(repr=False)
    position: int = 0
    turn: int = field(default=0, compare=False)
    answers: tuple[int, ...] = ()
    execution: CallExecution | None = field(default=None, compare=False)
    arguments: str = field(default="", compare=False, repr=False)


RunRecord = Event | Activity | JournalEntry
"""Record that a run writes: an event of the log, a step of the execution, or an entry of the journal."""


def encode_entry(entry: JournalEntry) -> bytes:
    """Return the stored form of `entry` without the key: a line of JSON, followed by the content.

    The stored form of an entry with the form `REMOVED` is empty.
    """
    if entry.form == REMOVED:
        return b""
    header: list[Any] = [entry.kind, entry.form, entry.position]
    if entry.answers or entry.execution:
        header.append(entry.answers)
    if entry.execution:
        header.append(astuple(entry.execution))
        if entry.arguments:
            header.append(entry.arguments)
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + entry.content


def decode_entry(key: str, encoded_entry: bytes) -> JournalEntry:
    """Decode the stored form of an entry with the key `key`."""
    header, _, content = encoded_entry.partition(b"\n")
    kind, form, position, *rest = json.loads(header)
    # entries of earlier revisions have names "<index>-<digest>"
    answers = tuple(int(str(answer).partition("-")[0]) for answer in rest[0]) if rest else ()
    execution = CallExecution(*rest[1]) if len(rest) > 1 else None
    arguments = rest[2] if len(rest) > 2 else ""
    return JournalEntry(key, kind, form, content, position, answers=answers, execution=execution, arguments=arguments)
