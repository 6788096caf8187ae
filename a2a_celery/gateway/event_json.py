"""Events as JSON: what the SDK's dispatchers make of them."""

from __future__ import annotations

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from ..lifecycle import Event
from .proto_json import PIECE, JsonWriter

_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")

_PAYLOADS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
"""The fields of a StreamResponse, and of a SendMessageResponse."""

_writer = JsonWriter()
message_json = _writer.write


def event_json(event: Event) -> str:
    """`event` as a line of JSON: a StreamResponse; a task or a message are a SendMessageResponse too."""
    return one_line(f'{{"{_PAYLOADS[type(event)]}": {message_json(event)}}}')


async def event_json_in_pieces(event: Event) -> list[bytes]:
    """Return `event_json(event)`, encoded. While it writes a long task, the event loop serves others."""
    if not (isinstance(event, Task) and is_long(event)):
        return [event_json(event).encode()]
    return [b'{"task": ', *await _writer.write_in_pieces(event), b"}"]


async def event_line(event: Event) -> str:
    """Return `event_json(event)`. While it writes a long task, the event loop serves others."""
    if not (isinstance(event, Task) and is_long(event)):
        return event_json(event)
    return one_line(b"".join(await event_json_in_pieces(event)).decode())


async def task_json(task: Task) -> list[bytes]:
    """Return `message_json(task)`, encoded. While it writes a long task, the event loop serves others."""
    return await _writer.write_in_pieces(task) if is_long(task) else [message_json(task).encode()]


def is_long(task: Task) -> bool:
    """Whether the event loop would notice if `task` was written in one go."""
    if len(task.history) + len(task.artifacts) > PIECE:
        return True
    return any(len(artifact.parts) > PIECE for artifact in task.artifacts)


def one_line(data: str) -> str:
    """`data`, which is JSON, with characters escaped that end a line for Python, though neither for JSON nor for SSE.

    httpx, and with it the SDK's own client, would take the frame apart at them.
    """
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data
