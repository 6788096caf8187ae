"""JSON encoding of results and events, in the format of the SDK's dispatchers.

`JsonWriter` returns the same JSON as protobuf's ``MessageToDict`` in a fraction of the time: protobuf inspects the
fields of every message, whereas the writer inspects each message type once. Tests compare the two for messages of all
kinds.

Source: ProtoJSON, https://protobuf.dev/programming-guides/json
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Generator, Sequence
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, NamedTuple, cast

from a2a.types import ListTasksResponse, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...lifecycle import Event
from ...lifecycle.events import time_text
from ..operations.limits import ResponseMeter, is_large

PIECE = 50
"""Maximum number of values of a Struct that are written as one piece."""

PAUSE = 4 * 1024
"""Number of characters that are written without a pause. Even if all values are one-digit numbers, this many characters
contain fewer than 1,000 values and take about a millisecond to write."""

SENT_AT_ONCE = 64 * 1024
"""Maximum number of bytes of a body that are sent without a pause."""

Written = Callable[[Any], str]

Pieces = Generator[str, None, int]
"""Generator of pieces of JSON. Its return value is the number of JSON values in the pieces."""

STRUCTURED = (Struct.DESCRIPTOR, Value.DESCRIPTOR)


class _Field(NamedTuple):
    """JSON format of one field of a message."""

    name: str
    prefix: str
    """Field name in JSON, with the text before the value."""
    write: Written
    has_presence: bool
    empty: str | None
    """Text of an empty field without presence, or None to omit the field."""
    pieces: Callable[[Any], Pieces] | None
    """Function that writes a field of unbounded length in pieces (an A2A message, a list of A2A messages, a Struct or a
    Value), or None for any other field."""


class JsonWriter:
    """Writer of messages as JSON. Empty fields without presence (lists, strings, numbers) are omitted unless
    `writes_empty` returns True for the field."""

    def __init__(self, writes_empty: Callable[[FieldDescriptor], bool] = lambda field: False) -> None:
        self._writes_empty = writes_empty
        self._fields_by_type: dict[type[Proto], list[_Field]] = {}

    def write(self, message: Proto) -> str:
        """Return `message` as a JSON object.

        Raises:
            ValueError: The message has a number that JSON cannot represent.
        """
        members = []
        for name, prefix, write, has_presence, empty, *_ in self._fields(message):
            if has_presence:
                if message.HasField(name):
                    members.append(prefix + write(getattr(message, name)))
            elif value := getattr(message, name):
                members.append(prefix + write(value))
            elif empty is not None:
                members.append(empty)
        return "{" + ", ".join(members) + "}"

    def pieces(self, message: Proto) -> Pieces:
        """Yield the result of `write` in pieces, each with at most `PIECE` values of a Struct.

        Raises:
            ValueError: The message has a number that JSON cannot represent.
        """
        prefix, values = "{", 1
        for field in self._fields(message):
            value = None if field.has_presence and not message.HasField(field.name) else getattr(message, field.name)
            if value or (field.has_presence and value is not None):
                values += 1
                if field.pieces is None:
                    yield prefix + field.prefix + field.write(value)
                else:
                    yield prefix + field.prefix
                    values += yield from field.pieces(value)
                prefix = ", "
            elif field.empty is not None:
                yield prefix + field.empty
                prefix = ", "
        yield prefix.removesuffix(", ") + "}"
        return values

    async def write_in_pieces(self, message: Proto, meter: ResponseMeter) -> list[bytes]:
        """Return `write(message)` as bytes, and add the number of its values to `meter`. The event loop runs other
        tasks after about every `PAUSE` characters."""
        encoded_pieces: list[bytes] = []
        pieces: list[str] = []
        size = 0

        def count_values() -> Generator[str, None, None]:
            meter.add_values((yield from self.pieces(message)))

        for piece in count_values():
            pieces.append(piece)
            size += len(piece) + PAUSE // PIECE
            if size >= PAUSE:
                encoded_pieces.append("".join(pieces).encode())
                pieces, size = [], 0
                await asyncio.sleep(0)
        return [*encoded_pieces, "".join(pieces).encode()]

    def _elements(self, messages: Any) -> Pieces:
        prefix, values = "[", 0
        for message in messages:
            yield prefix
            values += yield from self.pieces(message)
            prefix = ", "
        yield "]"
        return values

    def _fields(self, message: Proto) -> list[_Field]:
        return self._fields_by_type.get(type(message)) or self._inspect(message)

    def writer_of(self, field: FieldDescriptor) -> Written:
        """Return the writer of the values of `field`.

        Raises:
            TypeError: A2A messages have no fields of this type.
        """
        element = self._element_writer(field)
        return (lambda values: "[" + ", ".join(map(element, values)) + "]") if field.is_repeated else element

    def _inspect(self, message: Proto) -> list[_Field]:
        fields = []
        for field in cast(Descriptor, message.DESCRIPTOR).fields:
            prefix, write, empty = f'"{field.json_name}": ', self.writer_of(field), None
            if not field.has_presence and self._writes_empty(field):
                empty = prefix + write([] if field.is_repeated else field.default_value)
            fields.append(_Field(field.name, prefix, write, field.has_presence, empty, self._pieces_of(field)))
        self._fields_by_type[type(message)] = fields
        return fields

    def _pieces_of(self, field: FieldDescriptor) -> Callable[[Any], Pieces] | None:
        if _is_ours(field.message_type):
            return self._elements if field.is_repeated else self.pieces
        return _struct_pieces if field.message_type in STRUCTURED and not field.is_repeated else None

    def _element_writer(self, field: FieldDescriptor) -> Written:
        enum, message = field.enum_type, field.message_type
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return encode_basestring
            case FieldDescriptor.TYPE_INT32:
                return str
            case FieldDescriptor.TYPE_BOOL:
                return ("false", "true").__getitem__
            case FieldDescriptor.TYPE_BYTES:
                return lambda value: f'"{b64encode(value).decode()}"'
            case FieldDescriptor.TYPE_ENUM if enum is not None:
                names = {number: value.name for number, value in enum.values_by_number.items()}
                return lambda value: f'"{names[value]}"' if value in names else str(value)
            case FieldDescriptor.TYPE_MESSAGE if message is Timestamp.DESCRIPTOR:
                return lambda value: f'"{time_text(value)}"'
            case FieldDescriptor.TYPE_MESSAGE if message in STRUCTURED:
                return lambda value: "".join(_struct_pieces(value))
            case FieldDescriptor.TYPE_MESSAGE if message is not None and not message.GetOptions().map_entry:
                return self.write
            case _:
                raise TypeError(f"{field.full_name}: no A2A message has a field of this type")


def _struct_pieces(value: Any) -> Pieces:
    """Yield the JSON of a Struct, a ListValue or a Value in pieces of at most `PIECE` values.

    Raises:
        ValueError: A value is a number that JSON cannot represent.
    """
    if isinstance(value, Value):
        kind = value.WhichOneof("kind")
        if kind not in ("struct_value", "list_value"):
            yield _scalar(value, kind)
            return 0
        value = getattr(value, kind)
    is_object = isinstance(value, Struct)
    prefix, texts, count = "{" if is_object else "[", [], 0
    for name in value.fields if is_object else value.values:
        inner = value.fields[name] if is_object else name
        texts.append(f"{prefix}{encode_basestring(name)}: " if is_object else prefix)
        prefix = ", "
        count += 1
        kind = inner.WhichOneof("kind")
        if kind in ("struct_value", "list_value"):
            yield "".join(texts)
            texts = []
            count += yield from _struct_pieces(inner)
            continue
        texts.append(_scalar(inner, kind))
        if len(texts) >= 2 * PIECE:
            yield "".join(texts)
            texts = []
    yield "".join([*texts, "" if prefix == ", " else prefix, "}" if is_object else "]"])
    return count


def _scalar(value: Value, kind: str | None) -> str:
    match kind:
        case "number_value":
            number = value.number_value
            if not isfinite(number):
                raise ValueError(f"JSON has no {number}, neither NaN nor infinity")
            return repr(number)
        case "string_value":
            return encode_basestring(value.string_value)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case _:
            return "null"


def _is_ours(message: Descriptor | None) -> bool:
    """Return True if `message` is a message type of A2A, not a type of protobuf itself or a map entry."""
    return message is not None and message.file.package != "google.protobuf" and not message.GetOptions().map_entry


_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")

_PAYLOADS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
"""Field of a StreamResponse or a SendMessageResponse for each type of event."""

_writer = JsonWriter()
message_json = _writer.write


def event_json(event: Event) -> str:
    """Return `event` as a StreamResponse on one line. For a task or a message, the JSON is also a valid
    SendMessageResponse."""
    return one_line(f'{{"{_PAYLOADS[type(event)]}": {message_json(event)}}}')


async def event_json_in_pieces(event: Event, meter: ResponseMeter) -> list[bytes]:
    """Return `event_json(event)` as bytes. While a large event is written, the event loop runs other tasks."""
    if not is_large(event):
        return [event_json(event).encode()]
    return [f'{{"{_PAYLOADS[type(event)]}": '.encode(), *await _writer.write_in_pieces(event, meter), b"}"]


async def event_line(event: Event, meter: ResponseMeter) -> str:
    """Return `event_json(event)`. While a large event is written, the event loop runs other tasks."""
    if not is_large(event):
        return event_json(event)
    return one_line(b"".join(await event_json_in_pieces(event, meter)).decode())


async def task_json(task: Task, meter: ResponseMeter) -> list[bytes]:
    """Return `message_json(task)` as bytes. While a large task is written, the event loop runs other tasks."""
    return await _writer.write_in_pieces(task, meter) if is_large(task) else [message_json(task).encode()]


def one_line(data: str) -> str:
    """Escape the characters in the JSON `data` that end a line in Python but not in JSON or in server-sent events.

    httpx, and therefore the SDK's client, would split a frame at these characters.
    """
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data


_PAGE_FIELDS = tuple(ListTasksResponse.DESCRIPTOR.fields)
_page_writer = JsonWriter((*_PAGE_FIELDS, Task.DESCRIPTOR.fields_by_name["artifacts"]).__contains__)
_page_writer_without_artifacts = JsonWriter(_PAGE_FIELDS.__contains__)


class PiecewiseResponse(Response):
    """Response that sends the body in pieces, because joining a large body would delay the event loop."""

    def __init__(self, pieces: Sequence[bytes], size: int, media_type: str) -> None:
        super().__init__(headers={"Content-Length": str(size)}, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body. Small pieces are joined, and the event loop runs other tasks between two sends."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        ready: list[bytes] = []
        for number, piece in enumerate(self._pieces, start=1):
            ready.append(piece)
            if sum(map(len, ready)) >= SENT_AT_ONCE or number == len(self._pieces):
                await send({"type": "http.response.body", "body": b"".join(ready), "more_body": True})
                ready = []
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def page_json(page: ListTasksResponse, artifacts: bool, meter: ResponseMeter) -> list[bytes]:
    """Return `page` as JSON. The empty fields of the page are included, and the empty fields of its tasks are omitted.
    Empty artifact lists are included only if `artifacts` is True.

    Source: A2A specification 3.1.4 and 3.2.4.
    """
    writer = _page_writer if artifacts else _page_writer_without_artifacts
    if is_large(page):
        return await writer.write_in_pieces(page, meter)
    return [writer.write(page).encode()]


def rpc_response(request_id: str | float | None, result: Sequence[bytes]) -> Response:
    """Return the JSON-RPC response with `result`."""
    prefix = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": '.encode()
    return json_response([prefix, *result, b"}"], "application/json")


def json_response(pieces: Sequence[bytes], media_type: str) -> Response:
    """Return a response with `pieces` as its JSON body."""
    size = sum(map(len, pieces))
    if size > SENT_AT_ONCE:
        return PiecewiseResponse(pieces, size, media_type)
    return Response(b"".join(pieces), media_type=media_type)
