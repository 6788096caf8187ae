"""Events as JSON: what the SDK's dispatchers make of them."""

from __future__ import annotations

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from ..lifecycle import Event
from .proto_json import JsonWriter

_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")

_PAYLOADS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
"""The fields of a StreamResponse, and of a SendMessageResponse."""

message_json = JsonWriter().write


def event_json(event: Event) -> str:
    """`event` as a line of JSON: a StreamResponse; a task or a message are a SendMessageResponse too."""
    return one_line(f'{{"{_PAYLOADS[type(event)]}": {message_json(event)}}}')


def one_line(data: str) -> str:
    """`data`, which is JSON, with characters escaped that end a line for Python, though neither for JSON nor for SSE.

    httpx, and with it the SDK's own client, would take the frame apart at them.
    """
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data
