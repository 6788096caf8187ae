"""Events as JSON: what the SDK's dispatchers make of them, in a fraction of the time.

protobuf's ``MessageToDict`` asks for each field of each message again what its descriptor says; here that is asked once
for each field there is. What A2A's messages share with other protocols (values and timestamps) is left to protobuf, and
a test compares the two for events of all kinds.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto

from ..lifecycle import Event

Written = Callable[[Any], str]

_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")

_PAYLOADS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
"""The fields of a StreamResponse."""

_fields: dict[FieldDescriptor, tuple[str, Written]] = {}
"""Of each field that was met: its name with what follows that, and how its value is written."""

_plain: Written = json.JSONEncoder(ensure_ascii=False).encode


def event_json(event: Event) -> str:
    """`event` as a line of JSON: a StreamResponse."""
    return one_line(f'{{"{_PAYLOADS[type(event)]}": {_message(event)}}}')


def one_line(data: str) -> str:
    """`data`, which is JSON, with characters escaped that end a line for Python, though neither for JSON nor for SSE.

    httpx, and with it the SDK's own client, would take the frame apart at them.
    """
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data


def _message(message: Proto) -> str:
    said = []
    for field, value in message.ListFields():
        known = _fields.get(field)
        if known is None:
            known = _fields[field] = (f'"{field.json_name}": ', _how(field))
        said.append(known[0] + known[1](value))
    return "{" + ", ".join(said) + "}"


def _how(field: FieldDescriptor) -> Written:
    one = _how_one(field)
    return (lambda values: "[" + ", ".join(map(one, values)) + "]") if field.is_repeated else one


def _how_one(field: FieldDescriptor) -> Written:
    enum, message = field.enum_type, field.message_type
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _plain
        case FieldDescriptor.TYPE_BOOL:
            return ("false", "true").__getitem__
        case FieldDescriptor.TYPE_BYTES:
            return lambda value: _plain(b64encode(value).decode())
        case FieldDescriptor.TYPE_ENUM if enum is not None:
            names = {number: value.name for number, value in enum.values_by_number.items()}
            return lambda value: _plain(names.get(value, value))
        case FieldDescriptor.TYPE_MESSAGE if message is not None and message.file.package == "google.protobuf":
            return lambda value: _plain(MessageToDict(value))
        case FieldDescriptor.TYPE_MESSAGE if message is not None and not message.GetOptions().map_entry:
            return _message
        case _:
            raise TypeError(f"{field.full_name}: no event of A2A has such a field")
