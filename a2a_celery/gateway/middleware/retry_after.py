"""Responses to requests that exceed a limit, with the time after which the client may retry.

Over HTTP+JSON and JSON-RPC: 429 with ``Retry-After``, so that proxies and plain HTTP clients understand it too. Over
gRPC: RESOURCE_EXHAUSTED with ``retry-after`` in the trailing metadata. Each has a ``google.rpc.RetryInfo`` next to the
ErrorInfo. The JSON-RPC code is -32603: the specification counts an exceeded rate limit among system errors.

Source: A2A specification 3.3.2, 9.5, 10.6, 11.6; RFC 6585 4; RFC 9110 10.2.3.
"""

from __future__ import annotations

import json
from random import uniform
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...clock import Clock
from ..protocol_errors import LimitExceededError

LIMIT_ERRORS = "a2a_limit_errors"
"""Key of a request's scope and its call context for the list of limit errors of the request."""

HEADER = "Retry-After"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


REFUSAL_DELAY = 1.0
"""Seconds, at most, that a refusal is delayed. Half of it is random, so that the connections of an insistent caller do
not send their next requests all at once."""

MAX_DELAYED = 1_000
"""Refusals that are delayed at the same time. Further ones are sent at once."""


class RefusalDelay:
    """Delay of refusals, so that a caller that repeats its request at once takes little of the gateway's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._delayed = 0

    async def wait(self) -> None:
        """Wait before a refusal is sent."""
        if self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await self._clock.sleep(uniform(REFUSAL_DELAY / 2, REFUSAL_DELAY))
        finally:
            self._delayed -= 1


def record_limit_error(errors: list[LimitExceededError] | None, error: LimitExceededError) -> None:
    """Add `error` to the request's limit errors, for `with_retry_after`: the binding turns errors into responses
    before."""
    if errors is not None:
        errors.append(error)


def retry_seconds(error: LimitExceededError) -> int:
    """Return the seconds after which the caller may retry."""
    return int((error.data or {})["retryAfter"])


def with_retry_after(response: Response, request: Request) -> Response:
    """Return `response`; if the request exceeded a limit, with the status 429, Retry-After and RetryInfo."""
    errors: list[LimitExceededError] = request.scope.get(LIMIT_ERRORS, [])
    if not errors or not isinstance(response, JSONResponse):
        return response
    return too_many_requests(json.loads(bytes(response.body)), errors[0], response.media_type)


def too_many_requests(
    payload: dict[str, Any], error: LimitExceededError, media_type: str | None = "application/json"
) -> JSONResponse:
    """Return the 429 response with the JSON that a binding made of `error`."""
    seconds = retry_seconds(error)
    error_json = payload.get("error", {})
    details = error_json.get("details", error_json.get("data"))
    if isinstance(details, list):  # 0.3 over JSON-RPC has an object there
        details.append({"@type": RETRY_INFO, "retryDelay": f"{seconds}s"})
    return JSONResponse(payload, status_code=429, headers={HEADER: str(seconds)}, media_type=media_type)
