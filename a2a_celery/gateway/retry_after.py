"""How a refusal for a limit is said in the bindings: when its caller may come again.

Over HTTP+JSON and JSON-RPC it is 429 with ``Retry-After``, so that proxies and plain HTTP clients understand it too,
and over gRPC RESOURCE_EXHAUSTED with ``retry-after`` in the trailing metadata; each with a ``google.rpc.RetryInfo``
beside the ErrorInfo. The JSON-RPC code is -32603: the specification counts an exceeded rate limit among system errors.

Source: A2A specification 3.3.2, 9.5, 10.6, 11.6; RFC 6585 4; RFC 9110 10.2.3.
"""

from __future__ import annotations

import json
from typing import Any

from a2a.utils.error_handlers import A2A_DOMAIN
from a2a.utils.errors import A2A_ERROR_REASONS
from google.rpc import code_pb2, error_details_pb2, status_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .faults import LimitExceededError

REFUSALS = "a2a_refusals"
"""Where, in a request's scope and its call context, the refusal of it is left for who answers."""

HEADER = "Retry-After"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def note(refusals: list[LimitExceededError] | None, error: LimitExceededError) -> None:
    """Leaves word for the binding, which has turned the error into an answer by then: see `REFUSALS`."""
    if refusals is not None:
        refusals.append(error)


def seconds_of(error: LimitExceededError) -> int:
    """After how many seconds the caller may come again."""
    return int((error.data or {})["retryAfter"])


def limit_status(error: LimitExceededError) -> status_pb2.Status:
    """`error` as gRPC says it."""
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message=error.message)
    info = error_details_pb2.ErrorInfo(
        reason=A2A_ERROR_REASONS[LimitExceededError], domain=A2A_DOMAIN, metadata=error.data
    )
    again = error_details_pb2.RetryInfo()
    again.retry_delay.FromSeconds(seconds_of(error))
    for detail in (info, again):
        status.details.add().Pack(detail)
    return status


def with_retry_after(response: Response, request: Request) -> Response:
    """`response`, an error's if the request was refused: then with the status, the header and the detail of that."""
    refusals: list[LimitExceededError] = request.scope.get(REFUSALS, [])
    if not refusals or not isinstance(response, JSONResponse):
        return response
    return refused(json.loads(bytes(response.body)), refusals[0], response.media_type)


def refused(
    payload: dict[str, Any], error: LimitExceededError, media_type: str | None = "application/json"
) -> JSONResponse:
    """Return the response to a refused request, from the error that its binding made of it."""
    seconds = seconds_of(error)
    said = payload.get("error", {})
    details = said.get("details", said.get("data"))
    if isinstance(details, list):  # 0.3 over JSON-RPC has an object there
        details.append({"@type": RETRY_INFO, "retryDelay": f"{seconds}s"})
    return JSONResponse(payload, status_code=429, headers={HEADER: str(seconds)}, media_type=media_type)
