"""JSON encoding of results and events, in the format of the SDK's dispatchers.

`JsonWriter` returns the same JSON as protobuf's ``MessageToDict`` in a fraction of the time: protobuf inspects the
fields of every message, whereas the writer inspects each message type once. Tests compare the two for messages of all
kinds.

Source: ProtoJSON, https://protobuf.dev/programming-guides/json
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, NamedTuple, cast

from a2a.types import (
    AgentCard,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...lifecycle import Event
from ...lifecycle.events import time_text
from ..gate import HeavyWork, count_value, is_large, process

Written = Callable[[Any], str]

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
        for name, prefix, write, has_presence, empty in self._fields(message):
            if has_presence:
                if message.HasField(name):
                    members.append(prefix + write(getattr(message, name)))
            elif value := getattr(message, name):
                members.append(prefix + write(value))
            elif empty is not None:
                members.append(empty)
        return "{" + ", ".join(members) + "}"

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
            fields.append(_Field(field.name, prefix, write, field.has_presence, empty))
        self._fields_by_type[type(message)] = fields
        return fields

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
                return _struct
            case FieldDescriptor.TYPE_MESSAGE if message is not None and not message.GetOptions().map_entry:
                return self.write
            case _:
                raise TypeError(f"{field.full_name}: no A2A message has a field of this type")


def _struct(value: Any) -> str:
    """Return the JSON of a Struct, a ListValue or a Value.

    Raises:
        ValueError: A value is a number that JSON cannot represent.
    """
    if isinstance(value, Struct):
        return (
            "{" + ", ".join(f"{encode_basestring(name)}: {_struct(value.fields[name])}" for name in value.fields) + "}"
        )
    if isinstance(value, ListValue):
        return "[" + ", ".join(map(_struct, value.values)) + "]"
    count_value()
    kind = value.WhichOneof("kind")
    return _struct(getattr(value, kind)) if kind in ("struct_value", "list_value") else _scalar(value, kind)


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


def page_json(page: ListTasksResponse, artifacts: bool) -> str:
    """Return `page` as JSON. The empty fields of the page are included, and the empty fields of its tasks are omitted.
    Empty artifact lists are included only if `artifacts` is True.

    Source: A2A specification 3.1.4 and 3.2.4.
    """
    return (_page_writer if artifacts else _page_writer_without_artifacts).write(page)


def rpc_result(request_id: str | float | None, result: str) -> str:
    """Return the JSON-RPC response with `result` as text."""
    return f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": {result}}}'


def result_json(result: Any, params: Proto) -> str:
    """Return the JSON of the result of an operation that does not stream.

    Args:
        result: A message of A2A, a JSON object, or None for no result.
        params: Request of the operation.
    """
    match result:
        case None:
            return "null"
        case dict():
            return json.dumps(result, allow_nan=False)
        case AgentCard():  # protobuf also writes the maps of a card
            return json.dumps(MessageToDict(result))
        case ListTasksResponse() if isinstance(params, ListTasksRequest):
            return page_json(result, params.include_artifacts)
        case Task() | Message() if isinstance(params, SendMessageRequest):
            return event_json(result)
        case _:
            return message_json(result)


async def write_result(
    result: Any, params: Proto, work: HeavyWork, wrap: Callable[[str], str] = lambda text: text
) -> bytes:
    """Return `result_json(result, params)` as bytes. A large result is written as heavy work.

    Args:
        result: Result of an operation.
        params: Request of the operation.
        work: Function that executes heavy work of the caller.
        wrap: Function that wraps the JSON in the format of the binding.
    """

    def write() -> bytes:
        return wrap(result_json(result, params)).encode()

    return await process(work, isinstance(result, Proto) and is_large(result), write)
