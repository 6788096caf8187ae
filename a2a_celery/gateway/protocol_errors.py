"""Protocol errors that the SDK lacks, the mapping of exceptions to protocol errors, and Retry-After.

A request that exceeds a limit gets status 429 with ``Retry-After`` over HTTP, and RESOURCE_EXHAUSTED with
``retry-after`` in the trailing metadata over gRPC, each with a ``google.rpc.RetryInfo``. The JSON-RPC code is -32603,
because the specification counts an exceeded rate limit as a system error.

Source: A2A specification 3.3.2 and 5.4; ``google.rpc`` error details.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from math import inf
from random import uniform
from typing import Any
from uuid import uuid4

from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import EXCEPTION_MAP
from a2a.utils.errors import (
    A2A_ERROR_MAPPING,
    A2A_ERROR_REASONS,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ErrorMapping,
    InternalError,
    InvalidParamsError,
)
from starlette.responses import JSONResponse

from ..clock import Clock
from ..errors import ArchiveUnavailable, StoreUnavailable
from ..operations.errors import LimitExceededError, invalid_fields
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

LAST_EVENT_ID = "last-event-id"
"""Request header with the id of the last event that a subscriber has received."""

PUSH_EVENTS = "a2a-push-events"
"""Service parameter (HTTP header or gRPC metadata) with the list of events to which a config subscribes. The default is
all events."""


class ServiceUnavailableError(A2AError):
    """Error for an unavailable service. The client may repeat the request later (3.3.2, system errors)."""

    message = "The service is temporarily unavailable: try again later"


class RequestTooLargeError(A2AError):
    """Error for a request body that exceeds the maximum size."""

    message = "The request is too large"


class UnauthenticatedError(A2AError):
    """Error for an unknown caller. The error states no reason (3.3.2, authentication errors)."""

    message = "Authentication is required: use one of the schemes in the agent's card"


class Denial(StrEnum):
    """Permission that the caller of a refused request lacks. The values are labels of a metric."""

    TENANT = "tenant"
    OPERATOR = "operator"
    EXTENDED_CARD = "extended_card"
    ORIGIN = "other_origin"
    HOST = "other_host"


class PermissionDeniedError(A2AError):
    """Error for a caller who lacks a required permission (3.3.2, authorization errors).

    Attributes:
        reason: Kind of the permission, for the operator's log.
    """

    def __init__(self, message: str, reason: Denial) -> None:
        super().__init__(message)
        self.reason = reason


# The SDK does not define these errors, so they are added to the tables in which the SDK's bindings look errors up.
# JSON-RPC sends errors without an entry as internal errors (-32603), as 3.3.2 requires for system errors.
EXTRA_MAPPINGS: dict[type[A2AError], ErrorMapping] = {
    UnauthenticatedError: ErrorMapping(401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    PermissionDeniedError: ErrorMapping(403, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    ServiceUnavailableError: ErrorMapping(503, "UNAVAILABLE", "SERVICE_UNAVAILABLE"),
    RequestTooLargeError: ErrorMapping(413, "INVALID_ARGUMENT", "REQUEST_TOO_LARGE"),
    LimitExceededError: ErrorMapping(429, "RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED"),
}
A2A_ERROR_MAPPING.update(EXTRA_MAPPINGS)
EXTRA_RPC_CODES: dict[type[A2AError], int] = {UnauthenticatedError: -31401, PermissionDeniedError: -31403}
"""Error codes of this package. JSON-RPC leaves codes above -32000 to applications, and A2A defines none for these
errors."""
JSON_RPC_ERROR_CODE_MAP.update(EXTRA_RPC_CODES)
EXCEPTION_MAP.update(dict.fromkeys(EXTRA_RPC_CODES, JSONRPCError))
A2A_ERROR_REASONS.update({error: mapping.reason for error, mapping in EXTRA_MAPPINGS.items()})


_RPC_STATUS = {code: EXTRA_MAPPINGS[error].http_code for error, code in EXTRA_RPC_CODES.items()}


def rpc_status(answer: Mapping[str, Any]) -> int:
    """Return the HTTP status of a JSON-RPC response: 200, except for errors to which proxies and clients react (401 and
    403)."""
    return _RPC_STATUS.get(answer.get("error", {}).get("code"), 200)


def to_a2a(error: Exception) -> A2AError:
    """Return the A2A error for `error`.

    An unavailable store or archive becomes a ServiceUnavailableError. Any other exception becomes an internal error
    with a reference to the log entry that contains the exception.
    """
    if isinstance(error, A2AError):
        if isinstance(error, InvalidParamsError) and type(error.data) is dict and "errors" in error.data:
            return invalid_fields(error.data["errors"])
        return error
    if isinstance(error, StoreUnavailable | ArchiveUnavailable):
        logger.warning("a request failed: %s", error, extra=about(Action.REQUEST_FAILED))
        return ServiceUnavailableError()
    reference = uuid4().hex[:12]
    log_fields = about(Action.REQUEST_FAILED, reference=reference)
    logger.error("an operation failed [reference %s]", reference, exc_info=error, extra=log_fields)
    return InternalError("Internal error", data={"reference": reference})


HEADER = "Retry-After"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


REFUSAL_DELAY = 1.0
"""Usual maximum delay of a refusal, in seconds. Half of the delay is random, so that the connections of a caller that
keeps retrying do not all send their next requests at the same moment."""

MANY_DELAYED = 1_000
"""Number of delayed refusals above which the delay grows in proportion to their number, so that a gateway process sends
at most about 1,300 of them per second. The limits on connections and calls bound the number."""


class RefusalDelay:
    """Delay of refusals, so that a caller that retries immediately uses little of the gateway's CPU time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._delayed = 0

    async def wait(self, max_delayed: float = inf) -> None:
        """Sleep until the refusal may be sent. If `max_delayed` refusals are delayed already, return at once."""
        if self._delayed >= max_delayed:
            return
        self._delayed += 1
        try:
            growth = max(1.0, self._delayed / MANY_DELAYED)
            await self._clock.sleep(growth * uniform(REFUSAL_DELAY / 2, REFUSAL_DELAY))
        finally:
            self._delayed -= 1


class BurstDelay:
    """Delay of responses to callers without credentials, if there are more than a number of them per second.

    Args:
        per_second: Number of responses per second that are not delayed.
        clock: Source of time.
    """

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._delay = RefusalDelay(clock)
        self._times: deque[float] = deque(maxlen=per_second)  # of the newest responses

    async def wait(self, max_delayed: float = inf) -> None:
        """Count a response, and sleep until it may be sent. If `max_delayed` responses are delayed already, return at
        once."""
        now = self._clock.monotonic()
        are_many = len(self._times) == self._times.maxlen and now - self._times[0] < 1
        self._times.append(now)
        if are_many:
            await self._delay.wait(max_delayed)


def retry_seconds(error: LimitExceededError) -> int:
    """Return the seconds after which the caller may retry."""
    return int((error.data or {})["retryAfter"])


def too_many_requests(
    payload: dict[str, Any], seconds: int, media_type: str | None = "application/json"
) -> JSONResponse:
    """Return a response with status 429.

    Args:
        payload: Error as JSON in the format of its binding. A RetryInfo is added to its details.
        seconds: Seconds after which the caller may retry, sent in the header Retry-After.
        media_type: Media type of the response, or None for the default of Starlette's `JSONResponse`.
    """
    error_json = payload.get("error", {})
    details = error_json.get("details", error_json.get("data"))
    if isinstance(details, list):  # in JSON-RPC of protocol 0.3, the data is an object
        details.append({"@type": RETRY_INFO, "retryDelay": f"{seconds}s"})
    return JSONResponse(payload, status_code=429, headers={HEADER: str(seconds)}, media_type=media_type)
