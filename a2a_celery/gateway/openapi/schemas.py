"""JSON Schemas of protobuf messages in ProtoJSON, the format of requests and responses.

Source: ProtoJSON, https://protobuf.dev/programming-guides/json; JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.api import field_behavior_pb2
from google.protobuf.descriptor import FieldDescriptor

Schema = dict[str, Any]

COMPONENTS = "#/components/schemas/"

STRING: Schema = {"type": "string"}
TIME: Schema = {"type": "string", "format": "date-time"}
COUNT: Schema = {"type": "integer", "minimum": 0}

_SCALARS: dict[int, Schema] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
}
_JSON_TYPES: dict[str, Schema] = {
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {"description": "A JSON value."},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Empty": {"type": "object"},
}
"""Schemas of messages with a special form in JSON."""


def object_schema(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with `required` and `optional` members."""
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


def list_schema(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def reference(descriptor: Any) -> Schema:
    """Return the schema of a message or enum type: a reference to its component."""
    return _JSON_TYPES.get(descriptor.full_name) or {"$ref": COMPONENTS + descriptor.name}


def schemas_of(requests: Iterable[Any], responses: Iterable[Any]) -> dict[str, Schema]:
    """Return the components of all types that the message types `requests` and `responses` contain, by name.

    A response omits empty lists, so a list is required only in messages that clients send.
    """
    sent = {kind.full_name: kind for root in requests for kind in _types_within(root)}
    received = {kind.full_name: kind for root in responses for kind in _types_within(root)}
    schemas = {}
    for name, kind in sorted((received | sent).items()):
        schemas[kind.name] = message_schema(kind, is_sent=name in sent) if hasattr(kind, "fields") else _enum(kind)
    return schemas


def message_schema(kind: Any, *, is_sent: bool, without: Iterable[str] = ()) -> Schema:
    """Return the schema of a message type.

    Args:
        kind: Descriptor of the type.
        is_sent: True if clients send messages of this type.
        without: Names of fields that are left out, because the path of the request contains them.
    """
    fields = [field for field in kind.fields if field.name not in without]
    schema: Schema = {"type": "object", "properties": {field.json_name: field_schema(field) for field in fields}}
    required = [field.json_name for field in fields if is_required(field) and (is_sent or not field.is_repeated)]
    if required:
        schema["required"] = required
    if is_sent:  # a response may have an empty value, such as the page token of the last page
        schema["properties"] |= {name: _non_empty(schema["properties"][name]) for name in required}
    choices = [
        [field.json_name for field in oneof.fields] for oneof in kind.oneofs if len(oneof.fields) > 1
    ]  # protobuf represents an optional field as a oneof with a single field
    if choices:
        [names] = choices
        schema["oneOf"] = [{"required": [name]} for name in names]
    return schema


def field_schema(field: Any) -> Schema:
    """Return the schema of the values of `field`."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": field_schema(message.fields_by_name["value"])}
    item = _SCALARS[field.type] if field.type in _SCALARS else reference(message or field.enum_type)
    return {"type": "array", "items": item} if field.is_repeated else item


def _non_empty(schema: Schema) -> Schema:
    """Return `schema` without the empty value of its type, which the gateway refuses in a required field."""
    minimum = {"array": "minItems", "string": "minLength"}.get(schema.get("type", ""))
    return schema | {minimum: 1} if minimum else schema


def is_required(field: Any) -> bool:
    """Return True if the specification requires `field`."""
    behavior = field.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    return field_behavior_pb2.REQUIRED in behavior


def _enum(kind: Any) -> Schema:
    """Return the schema of an enum, without the value 0, which stands for a missing value."""
    return {"type": "string", "enum": [value.name for value in kind.values if value.number != 0]}


def _types_within(root: Any) -> Iterator[Any]:
    """Yield the message type `root` and the message and enum types of its fields, without types in `_JSON_TYPES`."""
    pending, known = [root], set()
    while pending:
        kind = pending.pop()
        if kind.full_name in known or kind.full_name in _JSON_TYPES:
            continue
        known.add(kind.full_name)
        is_map = hasattr(kind, "fields") and kind.GetOptions().map_entry
        if not is_map:
            yield kind
        for field in getattr(kind, "fields", ()):
            pending += [inner for inner in (field.message_type, field.enum_type) if inner is not None]
