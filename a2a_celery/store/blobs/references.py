"""References: what stands in the store for a part that is too large for it.

A stored message, in which parts are missing, stands behind a table of them: which parts (by their order in it), the
names of their blobs, and their sizes. A table begins with a byte with which no protobuf message begins, so neither
a client nor an agent can write one, and a release that knows no references can't take a message for whole.

While a task is handled without its contents, a reference is a part whose URL is a mark that only this process knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from struct import pack, unpack_from
from typing import Any, ClassVar, NamedTuple, TypeVar

from a2a.types import (
    Artifact,
    Message,
    Part,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import Message as Proto

from ...errors import BlobsUnavailable
from ...lifecycle import Event
from ...lifecycle import encode as encode_event
from ..operation import Operation

P = TypeVar("P", bound=Proto)

TABLE = b"\x00"
"""What a stored message with references begins with; behind it four bytes with the length of the table."""

MARK = f"a2a-celery-blob:{token_hex(16)}:"
"""What the URL of a part begins with that is not there; known to this process alone, and never shown."""


class BlobRef(NamedTuple):
    """A blob: its task's tag and its digest, with a slash between them; and its size in bytes."""

    name: str
    size: int


class BlobsExpired(BlobsUnavailable):
    """A task was not begun, since its blobs may have been removed already."""


class Encoded(bytes):
    """A message of the protocol as it goes into the store; its large parts may be taken out before."""

    content: ClassVar[type[Proto]] = StreamResponse
    packed: bytes | None = None
    """What was written in its place before: a repeated call writes no blob again."""


class EncodedRequest(Encoded):
    """What a run is given."""

    content = SendMessageRequest


@dataclass(slots=True)
class Reading:
    """One reading of an answer: the blobs at hand, by name, and those that are missing yet."""

    available: Mapping[str, bytes] = field(default_factory=dict)
    missing: dict[str, BlobRef] = field(default_factory=dict)
    met: int = 0
    """Bytes of all blobs that the answer has named so far, at hand or not."""


READING: ContextVar[Reading | None] = ContextVar("a2a_celery_reading", default=None)


def encode(event: Event) -> Encoded:
    """The stored form of `event`."""
    return Encoded(encode_event(event))


def encode_request(request: SendMessageRequest) -> EncodedRequest:
    """The stored form of `request`."""
    return EncodedRequest(request.SerializeToString())


def encode_again(event: Event) -> bytes:
    """The stored form of what may have been read without its contents: its references are the same as before."""
    encoded = encode(event)
    return _without(encoded, {}, threshold=None) if MARK.encode() in bytes(encoded) else encoded


def take_out(encoded: Encoded, tag: str, threshold: int) -> tuple[bytes, dict[str, bytes]]:
    """`encoded` without the parts of more than `threshold` bytes, and these as that task's blobs, by name."""
    blobs: dict[str, bytes] = {}
    return _without(encoded, blobs, threshold=threshold, tag=tag), blobs


def forget(operation: Operation[Any]) -> bool:
    """Has a repeated call write its blobs again; whether it would not have."""
    known = [one for one in operation.args if isinstance(one, Encoded) and one.packed is not None]
    for one in known:
        one.packed = None
    return bool(known)


def decode_as(content: type[P], stored: bytes) -> P:
    """The message that was stored, with its parts as far as these are at hand; others are left as marks."""
    if not stored.startswith(TABLE):
        return content.FromString(stored)
    (length,) = unpack_from(">I", stored, 1)
    found = content.FromString(stored[5 + length :])
    parts = list(_parts_of(found))
    reading = READING.get()
    for place, name, size in json.loads(stored[5 : 5 + length]):
        blob = None
        if reading is not None:
            reading.met += size
            blob = reading.available.get(name)
            if blob is None:
                reading.missing[name] = BlobRef(name, size)
        if blob is None:
            parts[place].url = f"{MARK}{size}:{name}"
        else:
            parts[place].ParseFromString(blob)
    return found


def insert_blobs(message: Proto) -> None:
    """Replace the marks in `message` by the parts that are at hand; see `decode_as`."""
    reading = READING.get()
    if reading is None:
        return
    for part in _parts_of(message):
        if part.url.startswith(MARK):
            size, _, name = part.url.removeprefix(MARK).partition(":")
            reading.met += int(size)
            content = reading.available.get(name)
            if content is None:
                reading.missing[name] = BlobRef(name, int(size))
            else:
                part.ParseFromString(content)


def has_references(stored: bytes) -> bool:
    """Whether parts of it are elsewhere."""
    return stored.startswith(TABLE)


def met() -> int:
    """Bytes of the blobs that the answer at hand has named so far; 0 where nobody asks for contents."""
    reading = READING.get()
    return 0 if reading is None else reading.met


def is_resolved(*messages: Proto) -> bool:
    """Whether nothing of the `messages` is left as a mark."""
    return not any(part.url.startswith(MARK) for message in messages for part in _parts_of(message))


def full_size(message: Proto) -> int:
    """Bytes of `message` with all of its parts, those too that are left as marks."""
    marks = [part.url for part in _parts_of(message) if part.url.startswith(MARK)]
    return message.ByteSize() + sum(int(mark.removeprefix(MARK).partition(":")[0]) for mark in marks)


def _without(encoded: Encoded, blobs: dict[str, bytes], *, threshold: int | None, tag: str = "") -> bytes:
    content: Any = encoded.content.FromString(encoded)
    table: list[tuple[int, str, int]] = []
    for place, part in enumerate(_parts_of(content)):
        if threshold is None:
            if not part.url.startswith(MARK):
                continue
            size, _, name = part.url.removeprefix(MARK).partition(":")
            table.append((place, name, int(size)))
        elif part.ByteSize() > threshold:
            stored = part.SerializeToString(deterministic=True)
            name = f"{tag}/{sha256(stored).hexdigest()}"
            blobs[name] = stored
            table.append((place, name, len(stored)))
        else:
            continue
        part.Clear()
    if not table:
        return encoded
    header = json.dumps(table, separators=(",", ":")).encode()
    rest: bytes = content.SerializeToString()
    return TABLE + pack(">I", len(header)) + header + rest


def _parts_of(message: Any) -> Iterator[Part]:
    """The parts of a message of the protocol, in an order that its other parts don't change."""
    match message:
        case Message():
            yield from message.parts
        case Artifact():
            yield from message.parts
        case SendMessageRequest():
            yield from message.message.parts
        case Task():
            yield from message.status.message.parts
            for said in message.history:
                yield from said.parts
            for artifact in message.artifacts:
                yield from artifact.parts
        case TaskStatusUpdateEvent():
            yield from message.status.message.parts
        case TaskArtifactUpdateEvent():
            yield from message.artifact.parts
        case StreamResponse():
            yield from _parts_of(getattr(message, message.WhichOneof("payload")))
