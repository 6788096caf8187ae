"""Events in the log of a task, their stored form, and the parts of messages and artifacts.

An event is an SDK protobuf message. Its stored form is a serialized ``StreamResponse``. The time of a status is the
time at which the store recorded the event (A2A specification, TaskStatus.timestamp).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from a2a.helpers import new_data_part, new_text_part
from a2a.types import Message, Part, Role, StreamResponse, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import ParseError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .json_values import MAX_VALUE_DEPTH, TOO_DEEP, TooDeep, is_perhaps_rounded, portable, portable_text

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

_EVENT_ID = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,16}))?", re.ASCII)


class EventKind(StrEnum):
    """Kind of an event. The scripts of the store receive the letter of the kind."""

    TASK = "T"  # a complete task, such as the first entry of each log
    STATUS = "S"  # a new status
    ARTIFACT = "A"  # a new artifact, or the next chunk of an artifact
    CLIENT_MESSAGE = "U"  # a further message of the client, which is in the log but not in streams
    AGENT_MESSAGE = "M"  # the agent's message that completes the task, in place of a status


class EventId(NamedTuple):
    """Id of an event, which is unique in its task. The text form is ``<version>-<recorded_us>``.

    After a store was restored without its newest writes, new events reuse the versions of the lost events, with later
    times. Two ids with the same version and different times therefore belong to different events.

    Attributes:
        version: Number of the event in the log, counted from 1. 0 is the position before the first event.
        recorded_us: Time at which the store recorded the event, in µs since 1970, or 0 if unknown.
    """

    version: int
    recorded_us: int = 0

    def __str__(self) -> str:
        return f"{self.version}-{self.recorded_us}" if self.recorded_us else str(self.version)

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Parse an id from its text form, or from a version without a time.

        Raises:
            ValueError: `text` is not an id.
        """
        match = _EVENT_ID.fullmatch(text)
        if match is None:
            raise ValueError("an event id must have the form VERSION or VERSION-TIME, such as 3 or 3-1767225600000000")
        return cls(int(match[1]), int(match[2] or 0))

    def differs_from(self, other: EventId) -> bool:
        """Return True if the ids are known to belong to different events."""
        is_other_time = self.recorded_us != other.recorded_us and bool(self.recorded_us and other.recorded_us)
        return self.version != other.version or is_other_time


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Entry of a task's log.

    Attributes:
        version: Number of the entry in the log, from 1 without gaps.
        recorded_us: Time at which the store recorded the entry, in µs since 1970. Each entry has a later time than the
            previous entry.
        event: Event of the entry.
    """

    version: int
    recorded_us: int
    event: Event

    @property
    def id(self) -> EventId:
        """Id of the event, which is unique in the task."""
        return EventId(self.version, self.recorded_us)


def kind_of(event: Event) -> EventKind:
    """Return the kind of `event`. The kind of a message depends on its role.

    Raises:
        TypeError: `event` is not an A2A event.
    """
    match event:
        case Task():
            return EventKind.TASK
        case TaskStatusUpdateEvent():
            return EventKind.STATUS
        case TaskArtifactUpdateEvent():
            return EventKind.ARTIFACT
        case Message():
            return EventKind.CLIENT_MESSAGE if event.role == Role.ROLE_USER else EventKind.AGENT_MESSAGE
        case _:
            raise TypeError(f"not an A2A event: {type(event).__name__}")


def encode(event: Event) -> bytes:
    """Return the stored form of `event`, which is a serialized StreamResponse."""
    content: bytes = stream_response(event).SerializeToString()
    return content


def stream_response(event: Event) -> StreamResponse:
    """Wrap `event` in a StreamResponse.

    Raises:
        TypeError: `event` is not an A2A event.
    """
    match event:
        case Task():
            return StreamResponse(task=event)
        case Message():
            return StreamResponse(message=event)
        case TaskStatusUpdateEvent():
            return StreamResponse(status_update=event)
        case TaskArtifactUpdateEvent():
            return StreamResponse(artifact_update=event)
        case _:
            raise TypeError(f"not an A2A event: {type(event).__name__}")


def decode(content: bytes, recorded_us: int | None = None) -> Event:
    """Decode a stored event.

    Args:
        content: Stored form of the event.
        recorded_us: Time that replaces the timestamp of a status, in µs since 1970, or None to keep the timestamp.
    """
    return event_of_response(StreamResponse.FromString(content), recorded_us)


def event_of_response(response: StreamResponse, recorded_us: int | None = None) -> Event:
    """Return the event in a parsed `response`; see `decode`."""
    event: Event = getattr(response, response.WhichOneof("payload"))
    if recorded_us is not None and isinstance(event, Task | TaskStatusUpdateEvent):
        event.status.timestamp.CopyFrom(timestamp(recorded_us))
    return event


def timestamp(microseconds: int) -> Timestamp:
    """Return a protobuf timestamp for µs since 1970."""
    result = Timestamp()
    result.FromMicroseconds(microseconds)
    return result


def time_text(time: Timestamp) -> str:
    """Return `time` with milliseconds, in UTC (A2A specification 5.6.1)."""
    return f"{_time_of_second(time.seconds)}.{time.nanos // 1_000_000:03}Z"


@lru_cache(maxsize=1024)
def _time_of_second(seconds: int) -> str:
    """Return the time up to the second. Results are cached, because most events on a page or in a stream occur in the
    same second."""
    return (EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def has_content(parts: Iterable[Part]) -> bool:
    """Return True if `parts` contain non-blank text, data, a file or a URL."""
    return any(part.text.strip() if part.HasField("text") else part.WhichOneof("content") for part in parts)


def values_in(parts: Iterable[Part], *structs: Struct) -> list[Value]:
    """Return the data of `parts`, and the values of their metadata and of `structs`."""
    values = [value for struct in structs for value in struct.fields.values()]
    for part in parts:
        if part.HasField("data"):
            values.append(part.data)
        if part.HasField("metadata"):
            values += part.metadata.fields.values()
    return values


def levels_of_values(values: list[Value]) -> Iterator[tuple[list[Value], bool]]:
    """Yield `values`, then the values inside them, level by level, each with True if the level is too deep to be
    stored; see `MAX_VALUE_DEPTH`."""
    depth = 0
    while values:
        yield values, depth > MAX_VALUE_DEPTH
        inner: list[Value] = []
        levels = 0
        for value in values:
            match value.WhichOneof("kind"):
                case "struct_value":
                    inner += value.struct_value.fields.values()
                    levels = 3
                case "list_value":
                    inner += value.list_value.values
                    levels = levels or 2
        values, depth = inner, depth + levels


def require_storable(values: list[Value]) -> bool:
    """Raise InvalidAgentResponseError if a value of the agent is too deep to be stored; see `MAX_VALUE_DEPTH`.

    Return True if `is_perhaps_rounded` for a number in the values.
    """
    may_be_rounded = False
    for level, is_too_deep in levels_of_values(values):
        if is_too_deep:
            raise InvalidAgentResponseError(f"the agent's data or metadata is {TOO_DEEP}")
        may_be_rounded = may_be_rounded or any(is_perhaps_rounded(value.number_value) for value in level)
    return may_be_rounded


def parts_of(content: Any) -> list[Part]:
    """Convert `content` to parts. `content` is a text, the bytes of a file, JSON-like data, a Part or a list of Parts.

    Raises:
        InvalidAgentResponseError: `content` has any other type, cannot be represented in JSON, or is nested too deeply.
    """
    match content:
        case str():
            return [new_text_part(content if content.isascii() else portable_text(content))]
        case bytes():
            return [Part(raw=content, media_type="application/octet-stream")]
        case Part():
            return [content]
        case [Part(), *_] if all(isinstance(part, Part) for part in content):
            return list(content)
        case dict() | list() | int() | float() | bool():
            return [data_part(content)]
        case _:
            raise InvalidAgentResponseError(
                f"the agent returned a value of type {type(content).__name__}: "
                "return text, bytes, JSON data, a Part or a list of Parts"
            )


def data_part(content: Any, media_type: str = "application/json") -> Part:
    """Return a part with the JSON value `content`; see `portable`.

    Raises:
        InvalidAgentResponseError: `content` cannot be represented in JSON, or is nested too deeply.
    """
    try:
        part = new_data_part(portable(content, "data"), media_type=media_type)
    except (TooDeep, RecursionError):
        raise InvalidAgentResponseError(f"the agent's data or metadata is {TOO_DEEP}") from None
    except (TypeError, ValueError, OverflowError, ParseError) as e:
        raise InvalidAgentResponseError(f"the agent returned data that is not JSON: {e}") from e
    require_storable([part.data])
    return part


def portable_metadata(values: dict[str, Any]) -> dict[str, Any]:
    """Return JSON `values` of an agent as metadata; see `portable`.

    Raises:
        InvalidAgentResponseError: A value is nested too deeply.
    """
    try:
        metadata: dict[str, Any] = portable(values, "metadata")
    except (TooDeep, RecursionError):
        raise InvalidAgentResponseError(f"the agent's data or metadata is {TOO_DEEP}") from None
    return metadata


def jsonable(value: Any) -> Any:
    """Convert the return value of a plain function to a JSON value.

    Tuples, dates, dataclasses and similar types are converted. Text, bytes and A2A types are returned unchanged.

    Raises:
        InvalidAgentResponseError: `value` cannot be represented in JSON.
    """
    if isinstance(value, list) and value and all(isinstance(element, Part) for element in value):
        return value
    if value is None or isinstance(value, str | bytes | ProtoMessage):
        return value
    try:
        json_value = to_jsonable_python(value, bytes_mode="base64")
        json.dumps(json_value, allow_nan=False)
        return json_value
    except UnicodeEncodeError:  # half of a surrogate pair in a key
        return jsonable(portable(value, "data"))
    except (PydanticSerializationError, ValueError) as e:
        raise InvalidAgentResponseError(
            f"the agent returned a value of type {type(value).__name__}, which is not JSON"
        ) from e
