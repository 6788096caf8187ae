"""Responses of protocol 1.0 whose JSON is written by ``proto_json``, in half of the time that protobuf takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from a2a.types import ListTasksResponse, Task
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .event_json import is_long
from .proto_json import JsonWriter

_ARTIFACTS, _HISTORY = (Task.DESCRIPTOR.fields_by_name[name] for name in ("artifacts", "history"))


def _writer(*left_out: object) -> JsonWriter:
    return JsonWriter(lambda field: field not in left_out)


_page_writer = _writer(_HISTORY)
_page_writer_without_artifacts = _writer(_HISTORY, _ARTIFACTS)


class Json(list[bytes]):
    """A result that is JSON already, in pieces: one, unless it is long."""


class PiecewiseResponse(Response):
    """A response whose body is never joined: a large copy holds up the event loop."""

    def __init__(self, pieces: Sequence[bytes], media_type: str) -> None:
        super().__init__(headers={"Content-Length": str(sum(map(len, pieces)))}, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces. The event loop serves others between two of them."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def page_json(page: ListTasksResponse, artifacts: bool) -> Json:
    """Return `page` with its empty fields, but without an empty history, and without `artifacts` that were not wanted.

    Source: A2A specification 3.1.4 and 3.2.4.
    """
    writer = _page_writer if artifacts else _page_writer_without_artifacts
    if any(map(is_long, page.tasks)):
        return Json(await writer.write_in_pieces(page))
    return Json([writer.write(page).encode()])


def rpc_response(request_id: str | int | None, result: Json) -> Response:
    """The response of JSON-RPC with `result`."""
    before = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": '.encode()
    return json_response([before, *result, b"}"], "application/json")


def json_response(pieces: Sequence[bytes], media_type: str) -> Response:
    """Return a response with JSON in pieces. Several pieces are sent one by one."""
    if len(pieces) > _PIECES_JOINED:
        return PiecewiseResponse(pieces, media_type)
    return Response(b"".join(pieces), media_type=media_type)


_PIECES_JOINED = 3
"""Pieces of a result that is not long: JSON-RPC's envelope has two."""
