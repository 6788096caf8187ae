"""What a peer answered, as one of A2A's events, however odd: read once here, so that nobody else need be careful."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as v03
from a2a.types import (
    Message,
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
"""The fields in which a null is what somebody says, as any other value of theirs."""

UNREADABLE = (
    ParseError,
    ValidationError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,  # 1e400 for a whole number
    RecursionError,  # JSON within JSON within JSON
    SystemError,  # half a surrogate pair for the name of a state, on upb
)
"""What the JSON of a peer may raise in those who read it."""

_LEGACY_DEFAULTS: dict[str, dict[str, Any]] = {
    "task": {"id": "", "contextId": ""},
    "message": {"messageId": "", "role": "agent"},
    "status-update": {"taskId": "", "contextId": "", "final": False},
    "artifact-update": {"taskId": "", "contextId": ""},
}
"""What 0.3 insists on, by its "kind", for peers that leave it out."""


def event_of(answer: object) -> Event | None:
    """The Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent or Message that `answer` is, or has in it.

    `answer` is one of the SDK's types or the JSON of one, of protocol 1.0 or 0.3, also within a JSON-RPC response; its
    nulls count as missing, but in data and metadata, where they are values, and a field that is of the wrong kind is
    left out. None: nothing was answered.
    """
    if isinstance(answer, Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
        return answer
    if isinstance(answer, StreamResponse | SendMessageResponse):
        kind = answer.WhichOneof("payload")
        found: Event | None = getattr(answer, kind) if kind else None
        return found
    if isinstance(answer, Mapping):
        try:
            return _of_json(_without_nulls(answer))
        except RecursionError:
            return None
    return None


def json_of(message: Proto) -> Any:
    """The ProtoJSON of `message`; null for numbers that JSON has no word for, and Python's parser takes from peers."""
    try:
        return MessageToDict(message)
    except SerializeToJsonError:
        finite = type(message)()
        finite.CopyFrom(message)
        _make_finite(finite)
        return MessageToDict(finite)


def _make_finite(message: Proto) -> None:
    if isinstance(message, Value) and not math.isfinite(message.number_value):
        message.null_value = NULL_VALUE
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Proto):
            _make_finite(value)
        elif field.message_type.GetOptions().map_entry:
            for one in value.values():
                if isinstance(one, Proto):
                    _make_finite(one)
        else:
            for one in value:
                _make_finite(one)


def _of_json(data: dict[str, Any]) -> Event | None:
    match data:
        case {"result": dict(inner)}:
            return _of_json(inner)
        case {"jsonrpc": _}:
            return None
        case {"kind": str(kind)} if kind in _LEGACY_DEFAULTS:
            return _of_legacy(kind, data)
        case {"task": _} | {"message": _} | {"statusUpdate": _} | {"artifactUpdate": _}:
            return event_of(parse_leniently(data, StreamResponse))
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
    given = _LEGACY_DEFAULTS[kind] | _with_legacy_defaults(data)
    try:
        match kind:
            case "task":
                return conversions.to_core_task(v03.Task.model_validate({"status": {"state": "unknown"}} | given))
            case "message":
                return conversions.to_core_message(v03.Message.model_validate({"parts": []} | given))
            case "status-update":
                update = v03.TaskStatusUpdateEvent.model_validate({"status": {"state": "unknown"}} | given)
                return conversions.to_core_task_status_update_event(update)
            case _:
                return conversions.to_core_task_artifact_update_event(
                    v03.TaskArtifactUpdateEvent.model_validate({"artifact": {"artifactId": "", "parts": []}} | given)
                )
    except UNREADABLE:
        return None


def _with_legacy_defaults(value: Any, name: str = "") -> Any:
    """`value`, which stands in a field called `name`, with what 0.3 insists on within it."""
    if isinstance(value, list):
        return [_with_legacy_defaults(one, name) for one in value]
    if not isinstance(value, dict):
        return value
    filled = {key: _with_legacy_defaults(inner, key) for key, inner in value.items()}
    if name in ("message", "history"):
        return _LEGACY_DEFAULTS["message"] | {"parts": []} | filled
    if name in ("artifact", "artifacts"):
        return {"artifactId": "", "parts": []} | filled
    return {"state": "unknown"} | filled if name == "status" else filled


def parse_leniently(data: Mapping[str, Any], kind: type[_P]) -> _P:
    """The ProtoJSON `data` as far as it is one; unknown fields and what can't be read are left out."""
    try:
        return ParseDict(dict(data), kind(), ignore_unknown_fields=True)
    except UNREADABLE:
        found = kind()
    for piece in _pieces(data):
        try:
            found.MergeFrom(ParseDict(piece, kind(), ignore_unknown_fields=True))
        except UNREADABLE:
            continue
    return found


def _pieces(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`data` taken apart into objects with one value each; lists are broken up too."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from ({name: piece} for piece in _pieces(value))
        elif isinstance(value, list):
            yield from ({name: [one]} for one in value)
        else:
            yield {name: value}


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
