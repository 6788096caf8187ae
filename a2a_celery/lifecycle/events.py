"""Events: what a task's log is made of, and how one is written down.

An event is one of the SDK's own protobuf messages; its stored form is a serialized ``StreamResponse``. The time of a
status is not the agent's but the store's: the moment the event was recorded (A2A specification, TaskStatus.timestamp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from a2a.types import Message, Role, StreamResponse, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.timestamp_pb2 import Timestamp

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_EVENT_ID = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,16}))?", re.ASCII)


class EventKind(StrEnum):
    """Effect of an event on its task; the store's scripts receive the letter."""

    TASK = "T"  # the task as a whole: the first entry of every log
    STATUS = "S"  # a new status
    ARTIFACT = "A"  # a new artifact, or the next chunk of one
    CLIENT_MESSAGE = "U"  # the message that began a further turn; kept in the log, not shown in streams
    ANSWER = "M"  # the agent answered with a message alone: the task is completed by it


class EventId(NamedTuple):
    """Identity of an event within its task; as text ``<version>-<recorded_us>``.

    A store that comes back without its newest writes gives their versions to other events, at other times. So two ids
    with one version and different times are of different histories.

    Attributes:
        version: the event's place in the log, from 1; 0 for the place before the first event.
        recorded_us: the store's time at which the event was recorded, in µs since 1970; 0 if it is not known.
    """

    version: int
    recorded_us: int = 0

    def __str__(self) -> str:
        return f"{self.version}-{self.recorded_us}" if self.recorded_us else str(self.version)

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Return the id that `text` is: its text form, or a version alone.

        Raises:
            ValueError: `text` is no id.
        """
        found = _EVENT_ID.fullmatch(text)
        if found is None:
            raise ValueError("an event's id is a version, or a version and a time with a hyphen between")
        return cls(int(found[1]), int(found[2] or 0))

    def differs_from(self, other: EventId) -> bool:
        """Return whether the two ids are certain to be of different events."""
        is_other_time = self.recorded_us != other.recorded_us and bool(self.recorded_us and other.recorded_us)
        return self.version != other.version or is_other_time


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Event of a task's log.

    `version` counts from 1 without gaps. `recorded_us` is the store's time in microseconds since the epoch, later than
    that of the entry before.
    """

    version: int
    recorded_us: int
    event: Event

    @property
    def id(self) -> EventId:
        """Version and time, which no other event of the task has."""
        return EventId(self.version, self.recorded_us)


def kind_of(event: Event) -> EventKind:
    """The kind of `event`. A message is the client's or the agent's by its role."""
    match event:
        case Task():
            return EventKind.TASK
        case TaskStatusUpdateEvent():
            return EventKind.STATUS
        case TaskArtifactUpdateEvent():
            return EventKind.ARTIFACT
        case Message():
            return EventKind.CLIENT_MESSAGE if event.role == Role.ROLE_USER else EventKind.ANSWER
        case _:
            raise TypeError(f"not an A2A event: {type(event).__name__}")


def encode(event: Event) -> bytes:
    """The stored form of `event`: a serialized StreamResponse."""
    stored: bytes = stream_response(event).SerializeToString()
    return stored


def stream_response(event: Event) -> StreamResponse:
    """Return `event` as a stream carries it."""
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


def decode(stored: bytes, recorded_us: int | None = None) -> Event:
    """The event that `encode` wrote; `recorded_us` becomes the time of its status, None leaves that alone."""
    return opened(StreamResponse.FromString(stored), recorded_us)


def opened(response: StreamResponse, recorded_us: int | None = None) -> Event:
    """The event in the stored form that was read, see `decode`."""
    event: Event = getattr(response, response.WhichOneof("payload"))
    if recorded_us is not None and isinstance(event, Task | TaskStatusUpdateEvent):
        event.status.timestamp.CopyFrom(timestamp(recorded_us))
    return event


def timestamp(microseconds: int) -> Timestamp:
    """A protobuf timestamp from microseconds since the epoch."""
    result = Timestamp()
    result.FromMicroseconds(microseconds)
    return result
