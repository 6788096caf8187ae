"""Error responses of HTTP+JSON and JSON-RPC."""

from __future__ import annotations

from typing import Any

from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils import json_utils
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_rest_error_payload
from a2a.utils.errors import A2AError
from starlette.responses import JSONResponse

from ..protocol_errors import to_a2a
from .json_results import one_line


class A2AJsonResponse(JSONResponse):
    """Response of the HTTP+JSON binding."""

    media_type = A2A_JSON_MEDIA_TYPE


def rest_error(error: A2AError) -> JSONResponse:
    """Return the response for `error` (A2A specification 11.6)."""
    payload = build_rest_error_payload(error)
    return A2AJsonResponse(payload, status_code=payload["error"]["code"])


def rest_fault(error: Exception) -> str:
    """Return `error` as the data of a stream's event, on one line."""
    return one_line(json_utils.dumps(build_rest_error_payload(to_a2a(error))))


def rpc_error(error: A2AError) -> JSONResponse:
    """Return the JSON-RPC response for `error` of a request whose id is unknown."""
    return JSONResponse(build_error_response(None, error))


def rpc_envelope_error(error: JSONRPCError) -> JSONResponse:
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)})


def rpc_error_info(reason: str) -> dict[str, Any]:
    return {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}
