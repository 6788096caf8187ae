"""Blob references, which replace large parts in stored messages.

A stored message with references begins with a table of the missing parts. The table has the position, the size and the
blob name of each part. The first byte of a table cannot be the first byte of a protobuf message. A client or an agent
therefore cannot forge a table, and a release without support for references refuses the message.

A stored journal entry with a reference also begins with such a table, and has no content. The blob name is relative to
the folder of the task, so that the journal of a resubmitted task can become the journal of another task.

A process that has not read the blobs of a task represents an unresolved reference as a part whose URL begins with a
mark that only this process knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from struct import pack, unpack_from
from typing import Any, NamedTuple

from a2a.types import (
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import Message as Proto

from ...errors import BlobsUnavailable
from ...lifecycle import Event
from ...lifecycle import encode as encode_event
from ...lifecycle.journal import JournalEntry
from ...lifecycle.journal import encode_entry as encode_journal_entry

IN_REDIS = "store:"
"""Prefix of the last part of the name of a blob that Redis stores. No other blob name contains a colon."""

SMALL_PART = 16 * 1024
"""Size in bytes above which a part of a large message becomes a blob in Redis. A large message may consist of parts
that are all smaller than the threshold."""

TABLE = b"\x00"
"""First byte of a stored message with references. The next four bytes are the length of the table."""

MARK = f"a2a-celery-blob:{token_hex(16)}:"
"""Prefix of the URL of an unresolved part. The prefix is a secret of this process and is never sent."""


class BlobRef(NamedTuple):
    """Reference to a blob.

    Attributes:
        name: Tag of the task, folder of the journal (only for a journal entry) and digest of the blob, separated by
            slashes. `IN_REDIS` precedes the digest if Redis stores the blob.
        size: Size of the blob in bytes.
    """

    name: str
    size: int

    @property
    def in_redis(self) -> bool:
        """True if Redis stores the blob, and False if the object store does."""
        return IN_REDIS in self.name

    @property
    def digest(self) -> str:
        """SHA-256 digest of the blob."""
        return self.name.rpartition("/")[2].removeprefix(IN_REDIS)


class BlobMissing(BlobsUnavailable):
    """Error for a blob that does not exist, or that may have been removed before a script referred to it."""


class Encoded(bytes):
    """Stored form of an event, from which large parts can be extracted."""

    def extract_blobs(self, tag: str, threshold: int, mark: str = "") -> tuple[bytes, dict[str, bytes]]:
        """Return the stored form with references instead of parts larger than `threshold` bytes, and the contents of
        these parts by blob name. `mark` is `IN_REDIS` for blobs that Redis stores."""
        blobs: dict[str, bytes] = {}
        return _without(self, blobs, threshold=threshold, prefix=f"{tag}/{mark}"), blobs


class EncodedEntry(Encoded):
    """Stored form of a journal entry, whose content can be extracted as a blob."""

    folder = ""
    """Name of the folder of the journal's blobs, in the folder of the task."""

    def extract_blobs(self, tag: str, threshold: int, mark: str = "") -> tuple[bytes, dict[str, bytes]]:
        """See `Encoded.extract_blobs`. The content of the entry is extracted as one blob, or not at all."""
        header, _, content = self.partition(b"\n")
        if len(content) <= threshold:
            return self, {}
        name = f"{self.folder}/{mark}{sha256(content).hexdigest()}"
        return _with_table([(0, name, len(content))], header + b"\n"), {f"{tag}/{name}": content}


@dataclass(slots=True)
class Reading:
    """State of the parser of one reply: the available and the missing blobs, by name."""

    available: Mapping[str, bytes] = field(default_factory=dict)
    missing: dict[str, BlobRef] = field(default_factory=dict)
    referenced_bytes: int = 0
    """Size in bytes of all blobs to which the parsed part of the reply refers."""


READING: ContextVar[Reading | None] = ContextVar("a2a_celery_reading", default=None)


def encode(event: Event) -> Encoded:
    """Return the stored form of `event`."""
    return Encoded(encode_event(event))


def encode_again(event: Event) -> bytes:
    """Return the stored form of an event that may have unresolved references. The references are preserved."""
    encoded_event = encode(event)
    if MARK.encode() not in bytes(encoded_event):
        return encoded_event
    return _without(encoded_event, {}, threshold=None)


def encode_entry(entry: JournalEntry) -> EncodedEntry:
    """Return the stored form of `entry` without its key."""
    encoded_entry = EncodedEntry(encode_journal_entry(entry))
    encoded_entry.folder = f"journal-{entry.turn}"
    return encoded_entry


def resolve_entry(content: bytes, tag: str) -> EncodedEntry:
    """Decode a stored journal entry of the task with the tag `tag`. If the blob is unavailable, the content is
    empty."""
    if not content.startswith(TABLE):
        return EncodedEntry(content)
    [(_, name, size)], header = _split_table(content)
    entry = EncodedEntry(header + (_read_blob(f"{tag}/{name}", size) or b""))
    entry.folder = name.partition("/")[0]
    return entry


def header_and_size(content: bytes) -> tuple[bytes, int]:
    """Return the header of a stored journal entry whose content is a blob, and the size of the blob."""
    [(_, _, size)], header = _split_table(content)
    return header, size


def decode_stored(data: bytes) -> StreamResponse:
    """Parse a stored event. A part whose blob is not available becomes an unresolved reference."""
    if not data.startswith(TABLE):
        return StreamResponse.FromString(data)
    table, rest = _split_table(data)
    message = StreamResponse.FromString(rest)
    parts = list(_parts_of(message))
    for place, name, size in table:
        blob = _read_blob(name, size)
        if blob is None:
            parts[place].url = f"{MARK}{size}:{name}"
        else:
            parts[place].ParseFromString(blob)
    return message


def insert_blobs(message: Proto) -> None:
    """Replace the unresolved references in `message` whose blobs are available."""
    for part in _parts_of(message):
        if part.url.startswith(MARK):
            size, _, name = part.url.removeprefix(MARK).partition(":")
            content = _read_blob(name, int(size))
            if content is not None:
                part.ParseFromString(content)


def has_references(content: bytes) -> bool:
    """Return True if parts of a stored message are blobs."""
    return content.startswith(TABLE)


def referenced_bytes() -> int:
    """Return the total size of the blobs to which the parsed reply refers, or 0 if blobs are not resolved."""
    reading = READING.get()
    return 0 if reading is None else reading.referenced_bytes


def is_resolved(*messages: Proto) -> bool:
    """Return True if no part of `messages` is an unresolved reference."""
    return not any(part.url.startswith(MARK) for message in messages for part in _parts_of(message))


def full_size(message: Proto) -> int:
    """Return the size of `message` in bytes, including the blobs of unresolved parts."""
    marks = [part.url for part in _parts_of(message) if part.url.startswith(MARK)]
    return message.ByteSize() + sum(int(mark.removeprefix(MARK).partition(":")[0]) for mark in marks)


def _read_blob(name: str, size: int) -> bytes | None:
    """Return the content of a blob, or None if the blob is not available. Record the blob as missing in `READING`."""
    reading = READING.get()
    if reading is None:
        return None
    reading.referenced_bytes += size
    content = reading.available.get(name)
    if content is None:
        reading.missing[name] = BlobRef(name, size)
    return content


def _with_table(table: Sequence[tuple[int, str, int]], rest: bytes) -> bytes:
    header = json.dumps(table, separators=(",", ":")).encode()
    return TABLE + pack(">I", len(header)) + header + rest


def _split_table(content: bytes) -> tuple[list[tuple[int, str, int]], bytes]:
    """Return the table of references of a stored message or entry, and the bytes after the table."""
    (length,) = unpack_from(">I", content, 1)
    return json.loads(content[5 : 5 + length]), content[5 + length :]


def _without(encoded_event: bytes, blobs: dict[str, bytes], *, threshold: int | None, prefix: str = "") -> bytes:
    """Return a stored event with references instead of large parts.

    Args:
        encoded_event: Stored event without references.
        blobs: Blobs by name, to which the large parts are added.
        threshold: Size in bytes above which a part is large, or None to preserve only unresolved references.
        prefix: Prefix of the names of new blobs.
    """
    table: list[tuple[int, str, int]] = []
    content = StreamResponse.FromString(encoded_event)
    for place, part in enumerate(_parts_of(content)):
        if threshold is None:
            if not part.url.startswith(MARK):
                continue
            size, _, name = part.url.removeprefix(MARK).partition(":")
            table.append((place, name, int(size)))
        elif part.ByteSize() > threshold:
            part_content = part.SerializeToString(deterministic=True)
            name = prefix + sha256(part_content).hexdigest()
            blobs[name] = part_content
            table.append((place, name, len(part_content)))
        else:
            continue
        part.Clear()
    if not table:
        return encoded_event
    return _with_table(table, content.SerializeToString())


def _parts_of(message: Any) -> Iterator[Part]:
    """Yield the parts of a protocol message. The position of a part does not depend on the contents of other parts."""
    match message:
        case Message():
            yield from message.parts
        case Artifact():
            yield from message.parts
        case Task():
            yield from message.status.message.parts
            for entry in message.history:
                yield from entry.parts
            for artifact in message.artifacts:
                yield from artifact.parts
        case TaskStatusUpdateEvent():
            yield from message.status.message.parts
        case TaskArtifactUpdateEvent():
            yield from message.artifact.parts
        case StreamResponse():
            yield from _parts_of(getattr(message, message.WhichOneof("payload")))
