"""Errors in the HTTP+JSON binding: google.rpc.Status, as an answer and in a stream."""

from __future__ import annotations

from a2a.utils import json_utils
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError
from starlette.responses import JSONResponse

from .event_json import one_line
from .faults import to_a2a


class A2AJsonResponse(JSONResponse):
    """A response of the HTTP+JSON binding."""

    media_type = A2A_JSON_MEDIA_TYPE


def rest_error(error: A2AError) -> JSONResponse:
    """Return the response for `error` (A2A specification 11.6)."""
    payload = build_rest_error_payload(error)
    return A2AJsonResponse(payload, status_code=payload["error"]["code"])


def rest_fault(error: Exception) -> str:
    """`error`, in the protocol's terms, as the data of a stream's event: in one line."""
    return one_line(json_utils.dumps(build_rest_error_payload(to_a2a(error))))
