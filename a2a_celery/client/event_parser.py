"""Lenient parser that converts responses of A2A 1.0 and 0.3, as objects or JSON, to the SDK's event types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as v03
from a2a.types import (
    Message,
    Part,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError, SerializeToJsonError
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import NULL_VALUE, Value
from pydantic import ValidationError

from ..lifecycle import Event

_P = TypeVar("_P", bound=Proto)

_OPEN = frozenset({"data", "metadata"})
"""Fields in which null is a value rather than a missing field."""

UNREADABLE = (
    ParseError,
    ValidationError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,  # 1e400 for an integer
    RecursionError,  # deeply nested JSON
    SystemError,  # half a surrogate pair as the name of a state, with upb
)
"""Exceptions that the SDK, protobuf and pydantic raise for a peer's malformed JSON."""

_LEGACY_STATES = tuple(v03.TaskState)  # not a set, because the state in a response may be unhashable

_LEGACY_DEFAULTS: dict[str, dict[str, Any]] = {
    "task": {"id": "", "contextId": ""},
    "message": {"messageId": "", "role": "agent"},
    "status-update": {"taskId": "", "contextId": "", "final": False},
    "artifact-update": {"taskId": "", "contextId": ""},
}
"""Defaults by "kind" for the required fields of protocol 0.3, which some servers omit."""


def parse_event(answer: object) -> Event | None:
    """Parse the Task, Message, TaskStatusUpdateEvent or TaskArtifactUpdateEvent in a response.

    A null is treated as a missing field, except in data and metadata. A field with a value of the wrong type is
    dropped.

    Args:
        answer: An SDK object of protocol 1.0 or 0.3, or its JSON, which may be inside a JSON-RPC response.

    Returns:
        The event, or None if the response has no event.
    """
    if isinstance(answer, Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return answer
    if isinstance(answer, StreamResponse | SendMessageResponse):
        kind = answer.WhichOneof("payload")
        event: Event | None = getattr(answer, kind) if kind else None
        return event
    if isinstance(answer, Mapping):
        try:
            return _of_json(with_zones(_without_nulls(answer)))
        except RecursionError:
            return None
    return None


def to_json(message: Proto) -> Any:
    """Return `message` as a ProtoJSON value. NaN and infinite numbers, which JSON cannot represent, become null."""
    try:
        return MessageToDict(message)
    except SerializeToJsonError:
        finite = type(message)()
        finite.CopyFrom(message)
        _make_finite(finite)
        return MessageToDict(finite)


NAIVE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?")
_NAIVE_TIMESTAMP = re.compile(rf'"timestamp"\s*:\s*"{NAIVE_TIME.pattern}"')


def with_zones(value: Any) -> Any:
    """Return the JSON `value` after setting UTC as the zone of status timestamps that have no zone.

    Data and metadata are returned unchanged. fasta2a servers send timestamps without a zone, which ProtoJSON rejects.
    """
    if isinstance(value, list):
        return [with_zones(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: inner if key in _OPEN else _status_with_zone(inner) if key == "status" else with_zones(inner)
        for key, inner in value.items()
    }


def text_with_zones(text: str) -> str:
    """Return the JSON `text` after setting UTC as the zone of status timestamps that have no zone."""
    if _NAIVE_TIMESTAMP.search(text) is None:
        return text
    try:
        return json.dumps(with_zones(json.loads(text)))
    except (ValueError, RecursionError):
        return text  # the parser of the text reports the error


def _status_with_zone(status: Any) -> Any:
    zoned_status = with_zones(status)
    if (
        isinstance(zoned_status, dict)
        and isinstance(at := zoned_status.get("timestamp"), str)
        and NAIVE_TIME.fullmatch(at)
    ):
        return {**zoned_status, "timestamp": f"{at}Z"}
    return zoned_status


def _make_finite(message: Proto) -> None:
    if isinstance(message, Value) and not math.isfinite(message.number_value):
        message.null_value = NULL_VALUE
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Proto):
            _make_finite(value)
        elif field.message_type.GetOptions().map_entry:
            for inner in value.values():
                if isinstance(inner, Proto):
                    _make_finite(inner)
        else:
            for inner in value:
                _make_finite(inner)


def _of_json(data: dict[str, Any]) -> Event | None:
    match data:
        case {"result": dict(inner)}:
            return _of_json(inner)
        case {"jsonrpc": _}:
            return None
        case {"kind": str(kind)} if kind in _LEGACY_DEFAULTS:
            return _of_legacy(kind, data)
        case {"task": _} | {"message": _} | {"statusUpdate": _} | {"artifactUpdate": _}:
            return parse_event(parse_leniently(data, StreamResponse))
        case {"messageId": _} | {"parts": _}:
            return parse_leniently(data, Message)
        case {"artifact": _}:
            return parse_leniently(data, TaskArtifactUpdateEvent)
        case {"taskId": _, "status": _}:
            return parse_leniently(data, TaskStatusUpdateEvent)
        case {"id": _} | {"status": _} | {"artifacts": _}:
            return parse_leniently(data, Task)
    return None


def _of_legacy(kind: str, data: dict[str, Any]) -> Event | None:
    fields = _LEGACY_DEFAULTS[kind] | _with_legacy_defaults(data)
    try:
        match kind:
            case "task":
                return conversions.to_core_task(v03.Task.model_validate({"status": {"state": "unknown"}} | fields))
            case "message":
                return conversions.to_core_message(v03.Message.model_validate({"parts": []} | fields))
            case "status-update":
                update = v03.TaskStatusUpdateEvent.model_validate({"status": {"state": "unknown"}} | fields)
                return conversions.to_core_task_status_update_event(update)
            case _:
                return conversions.to_core_task_artifact_update_event(
                    v03.TaskArtifactUpdateEvent.model_validate({"artifact": {"artifactId": "", "parts": []}} | fields)
                )
    except UNREADABLE:
        return None


def _with_legacy_defaults(value: Any, name: str = "") -> Any:
    """Return `value`, the value of the field `name`, with defaults for missing fields that protocol 0.3 requires, and
    for states that it does not define."""
    if isinstance(value, list):
        return [_with_legacy_defaults(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: inner if key in _OPEN else _with_legacy_defaults(inner, key) for key, inner in value.items()}
    if name in ("message", "history"):
        return _LEGACY_DEFAULTS["message"] | {"parts": []} | fields
    if name in ("artifact", "artifacts"):
        return {"artifactId": "", "parts": []} | fields
    if name == "status":
        return fields if fields.get("state") in _LEGACY_STATES else fields | {"state": "unknown"}
    return fields


def parse_leniently(data: Mapping[str, Any], kind: type[_P]) -> _P:
    """Parse the ProtoJSON `data` as a message of the class `kind`. Unknown and unreadable fields are dropped."""
    message = kind()
    _merge_readable(data, message)
    return message


def _merge_readable(data: Mapping[str, Any], message: Proto) -> None:
    """Merge the readable fields of `data` into `message`. Fields of an unreadable object are merged one by one, and
    items of an unreadable list too. Values of data and metadata are not divided further."""
    if _merge(data, message):
        return
    for name, value in data.items():
        if _merge({name: value}, message) or message.DESCRIPTOR.file.package == "google.protobuf":
            continue
        field = message.DESCRIPTOR.fields_by_camelcase_name.get(name) or message.DESCRIPTOR.fields_by_name.get(name)
        target = None if field is None else getattr(message, field.name)
        if isinstance(value, Mapping) and isinstance(target, Proto):
            _merge_readable(value, target)
        elif isinstance(value, list):
            for item in value:
                if not _merge({name: [item]}, message) and isinstance(item, Mapping) and hasattr(target, "add"):
                    _add_readable(item, target)


def _merge(data: Mapping[str, Any], message: Proto) -> bool:
    """Merge `data` into `message`, and return True, or return False if a field is unreadable."""
    try:
        message.MergeFrom(ParseDict(dict(data), type(message)(), ignore_unknown_fields=True))
    except UNREADABLE:
        return False
    return True


def _add_readable(item: Mapping[str, Any], items: Any) -> None:
    """Add the readable fields of `item` to the repeated field `items`, unless nothing is readable. A part is added only
    if its content is readable."""
    message = items.add()
    _merge_readable(item, message)
    is_empty = message.WhichOneof("content") is None if isinstance(message, Part) else not message.ByteSize()
    if is_empty:
        del items[-1]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): inner if key in _OPEN else _without_nulls(inner)
            for key, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list | tuple):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value
