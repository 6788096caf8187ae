"""Results and events as JSON, in the form of the SDK's dispatchers. `proto_json` takes half of protobuf's time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from a2a.types import ListTasksResponse, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...lifecycle import Event
from .proto_json import PAUSE, PIECE, JsonWriter

_LINE_ENDS = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")

_PAYLOADS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
"""Fields of a StreamResponse and of a SendMessageResponse."""

_writer = JsonWriter()
message_json = _writer.write


def event_json(event: Event) -> str:
    """Return `event` as a StreamResponse on one line. For a task or a message it is a SendMessageResponse too."""
    return one_line(f'{{"{_PAYLOADS[type(event)]}": {message_json(event)}}}')


async def event_json_in_pieces(event: Event) -> list[bytes]:
    """Return `event_json(event)`, encoded. While a long task is written, the event loop runs other tasks."""
    if not (isinstance(event, Task) and is_long(event)):
        return [event_json(event).encode()]
    return [b'{"task": ', *await _writer.write_in_pieces(event), b"}"]


async def event_line(event: Event) -> str:
    """Return `event_json(event)`. While a long task is written, the event loop runs other tasks."""
    if not (isinstance(event, Task) and is_long(event)):
        return event_json(event)
    return one_line(b"".join(await event_json_in_pieces(event)).decode())


async def task_json(task: Task) -> list[bytes]:
    """Return `message_json(task)`, encoded. While a long task is written, the event loop runs other tasks."""
    return await _writer.write_in_pieces(task) if is_long(task) else [message_json(task).encode()]


def is_long(task: Task) -> bool:
    """Return whether `task` takes long enough to write to delay the event loop."""
    if len(task.history) + len(task.artifacts) > PIECE or task.ByteSize() > PAUSE:
        return True
    return any(len(artifact.parts) > PIECE for artifact in task.artifacts)


def one_line(data: str) -> str:
    """Return the JSON `data` with escapes for characters that end a line for Python, but neither for JSON nor for SSE.

    httpx, and so the SDK's own client, would split the frame at them.
    """
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data


_ARTIFACTS, _HISTORY = (Task.DESCRIPTOR.fields_by_name[name] for name in ("artifacts", "history"))


def _writer_without(*left_out: object) -> JsonWriter:
    return JsonWriter(lambda field: field not in left_out)


_page_writer = _writer_without(_HISTORY)
_page_writer_without_artifacts = _writer_without(_HISTORY, _ARTIFACTS)


class PiecewiseResponse(Response):
    """Response whose body is never joined, because a copy of a large body delays the event loop."""

    def __init__(self, pieces: Sequence[bytes], media_type: str) -> None:
        super().__init__(headers={"Content-Length": str(sum(map(len, pieces)))}, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces. The event loop runs other tasks between two of them."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def page_json(page: ListTasksResponse, artifacts: bool) -> list[bytes]:
    """Return `page` with its empty fields, but without empty histories, and without `artifacts` unless requested.

    Source: A2A specification 3.1.4 and 3.2.4.
    """
    writer = _page_writer if artifacts else _page_writer_without_artifacts
    if any(map(is_long, page.tasks)):
        return await writer.write_in_pieces(page)
    return [writer.write(page).encode()]


def rpc_response(request_id: str | int | None, result: Sequence[bytes]) -> Response:
    """Return the JSON-RPC response with `result`."""
    before = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": '.encode()
    return json_response([before, *result, b"}"], "application/json")


def json_response(pieces: Sequence[bytes], media_type: str) -> Response:
    """Return a response with JSON in pieces. Several pieces are sent one by one."""
    if len(pieces) > _PIECES_JOINED:
        return PiecewiseResponse(pieces, media_type)
    return Response(b"".join(pieces), media_type=media_type)


_PIECES_JOINED = 3
"""Pieces of a result that is not long: JSON-RPC's envelope has two."""
