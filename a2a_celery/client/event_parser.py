"""Lenient parser that converts responses of A2A 1.0 and 0.3, as objects or JSON, to the SDK's event types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
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
from pydantic import BaseModel, ValidationError

from ..lifecycle import Event
from ..lifecycle.json_values import TooDeep, portable

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


@dataclass(frozen=True, slots=True)
class _LegacyType:
    """Type of protocol 0.3: its model, its conversion to 1.0, and defaults for required fields, which some servers
    omit."""

    model: type[BaseModel]
    convert: Callable[[Any], Any]
    defaults: Mapping[str, Any]

    def read(self, fields: Any) -> Any:
        """Return the 1.0 object for `fields`.

        Raises:
            Exception: One of `UNREADABLE`.
        """
        return self.convert(self.model.model_validate(fields))

    def can_read(self, fields: Any) -> bool:
        """Return True if `read` returns an object for `fields`."""
        try:
            self.read(fields)
        except UNREADABLE:
            return False
        return True


_LEGACY_STATES = tuple(v03.TaskState)  # not a set, because the state in a response may be unhashable
_NO_STATUS = {"state": "unknown"}
_NO_ARTIFACT = {"artifactId": "", "parts": []}
_MESSAGE = _LegacyType(v03.Message, conversions.to_core_message, {"messageId": "", "role": "agent", "parts": []})
_ARTIFACT = _LegacyType(v03.Artifact, conversions.to_core_artifact, _NO_ARTIFACT)
_PART = _LegacyType(v03.Part, conversions.to_core_part, {})

_LEGACY_EVENTS = {
    "task": _LegacyType(v03.Task, conversions.to_core_task, {"id": "", "contextId": "", "status": _NO_STATUS}),
    "message": _MESSAGE,
    "status-update": _LegacyType(
        v03.TaskStatusUpdateEvent,
        conversions.to_core_task_status_update_event,
        {"taskId": "", "contextId": "", "final": False, "status": _NO_STATUS},
    ),
    "artifact-update": _LegacyType(
        v03.TaskArtifactUpdateEvent,
        conversions.to_core_task_artifact_update_event,
        {"taskId": "", "contextId": "", "artifact": _NO_ARTIFACT},
    ),
}
"""Types of the events by "kind"."""

_LEGACY_FIELDS = {
    "status": _LegacyType(v03.TaskStatus, conversions.to_core_task_status, _NO_STATUS),
    "message": _MESSAGE,
    "history": _MESSAGE,
    "artifact": _ARTIFACT,
    "artifacts": _ARTIFACT,
    "parts": _PART,
}
"""Types of the values, or of the items of the list, by the name of a field."""


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
            return _of_json(repaired(without_nulls(answer)))
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
_DEFECT = re.compile(rf'"fieldViolations"|"timestamp"\s*:\s*"{NAIVE_TIME.pattern}"|[:,\[]\s*-?[1-9]\d{{15,}}\s*[,\]}}]')
"""Text in JSON that `repaired` may change."""


def repaired(value: Any) -> Any:
    """Return the JSON `value` with UTC as the zone of status timestamps that have no zone, and with texts in place of
    whole numbers in data and metadata that protobuf would round.

    fasta2a servers send timestamps without a zone, which ProtoJSON rejects.
    """
    if isinstance(value, list):
        return [repaired(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _exact(inner, key) if key in _OPEN else _status_with_zone(inner) if key == "status" else repaired(inner)
        for key, inner in value.items()
    }


def repaired_text(text: str) -> str:
    """Return the JSON `text` after `repaired`, with the invalid fields of an error where the SDK reads them."""
    if _DEFECT.search(text) is None:
        return text
    try:
        return json.dumps(repaired(_with_field_errors(json.loads(text))))
    except (ValueError, RecursionError):
        return text  # the parser of the text reports the error


ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def _with_field_errors(answer: Any) -> Any:
    """Add the violations in the BadRequest of an error to the metadata of its ErrorInfo, as the SDK does over gRPC. The
    SDK's client reads only the ErrorInfo of a JSON error."""
    match answer:
        case {"error": {"data": list(details)}} | {"error": {"details": list(details)}}:
            pass
        case _:
            return answer
    details[:] = (detail for detail in details if isinstance(detail, dict))
    violations = [violation for detail in details for violation in _list_in(detail, "fieldViolations")]
    errors = [{"field": v.get("field", ""), "message": v.get("description", "")} for v in violations]
    info = next((detail for detail in details if detail.get("@type") == ERROR_INFO), None)
    if info is None:
        details.append(info := {"@type": ERROR_INFO})
    metadata = info.get("metadata")
    info["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "errors": errors}
    return answer


def _list_in(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = fields.get(name)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _exact(value: Any, place: str) -> Any:
    try:
        return portable(value, f"the response, {place}")
    except TooDeep:
        return value  # the parser drops the value


def _status_with_zone(status: Any) -> Any:
    zoned_status = repaired(status)
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
        case {"kind": str(kind)} if kind in _LEGACY_EVENTS:
            return _of_legacy(_LEGACY_EVENTS[kind], data)
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


def _of_legacy(legacy_type: _LegacyType, data: dict[str, Any]) -> Event | None:
    event: Event
    with suppress(*UNREADABLE):
        event = legacy_type.read({**legacy_type.defaults, **_with_legacy_defaults(data)})
        return event
    with suppress(*UNREADABLE):
        event = legacy_type.read(_readable_legacy(data, legacy_type))
        return event
    return None


def _with_legacy_defaults(value: Any, name: str = "") -> Any:
    """Return `value`, the value of the field `name`, with defaults for missing fields that protocol 0.3 requires, and
    for states that it does not define."""
    if isinstance(value, list):
        return [_with_legacy_defaults(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: inner if key in _OPEN else _with_legacy_defaults(inner, key) for key, inner in value.items()}
    if name == "status" and fields.get("state") not in _LEGACY_STATES:
        fields["state"] = "unknown"
    return {**_LEGACY_FIELDS[name].defaults, **fields} if name in _LEGACY_FIELDS else fields


def _readable_legacy(value: dict[str, Any], legacy_type: _LegacyType) -> dict[str, Any]:
    """Return `value` without the fields and the items of lists that `legacy_type` cannot read."""
    fields: dict[str, Any] = {}
    for name, inner in value.items():
        field_type = _LEGACY_FIELDS.get(name)
        if field_type is not None and isinstance(inner, list):
            fields[name] = [item for each in inner for item in _readable_item(each, field_type)]
        elif field_type is not None and isinstance(inner, dict):
            fields[name] = _readable_legacy(inner, field_type)
        else:
            fields[name] = inner
    readable = dict(legacy_type.defaults)
    for name, inner in fields.items():
        if legacy_type.can_read(readable | {name: inner}):
            readable[name] = inner
    return readable


def _readable_item(item: Any, legacy_type: _LegacyType) -> Iterator[dict[str, Any]]:
    """Yield the readable fields of an item of a list, unless nothing is readable. A part is yielded only if its content
    is readable."""
    if not isinstance(item, dict):
        return
    if legacy_type is not _PART:
        yield _readable_legacy(item, legacy_type)
        return
    candidates = [item, {name: inner for name, inner in item.items() if name != "metadata"}]
    if isinstance(file := item.get("file"), dict):
        candidates.append(candidates[1] | {"file": {name: file[name] for name in ("bytes", "uri") if name in file}})
    yield from islice(filter(legacy_type.can_read, candidates), 1)


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


def without_nulls(value: Any) -> Any:
    """Return the JSON `value` without the fields and the items that are null. Data and metadata are returned
    unchanged."""
    if isinstance(value, Mapping):
        return {
            str(key): inner if key in _OPEN else without_nulls(inner)
            for key, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list | tuple):
        return [without_nulls(inner) for inner in value if inner is not None]
    return value
