"""HTTP endpoints beside the A2A operations that respond with JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ...lifecycle.references import Scope
from ...operations.errors import LimitExceededError
from ..auth.refusal_log import RefusalLog, RequestSource
from ..bindings.endpoints import (
    CLIENT_CLOSED_REQUEST,
    Endpoint,
    cancel_on_disconnect,
    rest_error,
    user_of,
    with_retry_after,
)
from ..gate import Gate
from ..pipeline import DISCONNECTED, OK
from ..protocol_errors import PermissionDeniedError, retry_seconds, to_a2a
from .bodies import receive_body

MAX_BODY = 1 << 17
"""Maximum size of a request body in bytes. The largest body is a signal with a payload of 64 KiB."""

Report = Callable[[Request, str], Awaitable[dict[str, Any]]]
"""Handler of an operation. The parameters are the request and the caller's name. The result is the response body."""


def json_endpoint(gate: Gate, refusal_log: RefusalLog, name: str, report: Report) -> Endpoint:
    """Return an endpoint that counts each request in the metrics as the operation `name`, and against the caller's
    rate limit. Exceptions become errors in the format of the HTTP+JSON binding. Refused callers are logged."""

    async def endpoint(request: Request) -> Response:
        outcome, owner = OK, user_of(request).user_name
        try:
            await gate.count_request("", Scope(owner=owner))
            await receive_body(request, gate, "", owner, MAX_BODY, may_be_empty=True)
            response = await cancel_on_disconnect(respond, request)
            outcome = DISCONNECTED if response.status_code == CLIENT_CLOSED_REQUEST else OK
            return response
        except ClientDisconnect:  # while the body was being read
            outcome = DISCONNECTED
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as e:
            error = to_a2a(e)
            outcome = type(error).__name__
            if isinstance(error, PermissionDeniedError):
                refusal_log.record_denial(error, RequestSource.of_http(request), owner)
            seconds = retry_seconds(error) if isinstance(error, LimitExceededError) else None
            return with_retry_after(rest_error(error), seconds)
        except BaseException:
            outcome = DISCONNECTED
            raise
        finally:
            gate.metrics.count_request("", name, outcome)

    async def respond(request: Request) -> Response:
        return JSONResponse(await report(request, user_of(request).user_name))

    return endpoint
