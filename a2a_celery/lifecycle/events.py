"""Events: what a task's log is made of, and how one is written down.

An event is one of the SDK's own protobuf messages; its stored form is a serialized ``StreamResponse``. The time of a
status is not the agent's but the store's: the moment the event was recorded (A2A specification, TaskStatus.timestamp).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from a2a.types import Message, Role, StreamResponse, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.timestamp_pb2 import Timestamp

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class EventKind(StrEnum):
    """What an event does to its task; the letter is what the store's scripts see."""

    TASK = "T"  # the task as a whole: the first entry of every log
    STATUS = "S"  # a new status
    ARTIFACT = "A"  # a new artifact, or the next chunk of one
    CLIENT_MESSAGE = "U"  # the message that began a further turn; kept in the log, not shown in streams
    ANSWER = "M"  # the agent answered with a message alone: the task is completed by it


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event of a task's log.

    `version` counts from 1 without gaps; `recorded_us` is the store's time in microseconds since the epoch.
    """

    version: int
    recorded_us: int
    event: Event


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
