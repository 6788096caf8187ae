"""HTTP endpoints beside the A2A operations that respond with JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from a2a.server.context import ServerCallContext
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...operations.errors import LimitExceededError
from ..auth.refusal_log import RefusalLog, RequestSource
from ..bindings.endpoints import CALLERS, rest_error
from ..operations.limits import OwnerLimits
from ..protocol_errors import RETRY_SECONDS, PermissionDeniedError, record_limit_error, to_a2a
from .operation import DISCONNECTED, OK

Report = Callable[[Request, str], Awaitable[dict[str, Any]]]
"""Handler of an operation. The parameters are the request and the caller's name. The result is the response body."""


def json_endpoint(
    limits: OwnerLimits, refusal_log: RefusalLog, name: str, report: Report
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that counts each request in the metrics as the operation `name`, and against the caller's
    rate limit. Exceptions become errors in the format of the HTTP+JSON binding. Refused callers are logged."""

    async def endpoint(request: Request) -> Response:
        outcome, user = OK, CALLERS.build_user(request)
        try:
            await limits.count_request("", ServerCallContext(user=user))
            return JSONResponse(await report(request, user.user_name))
        except Exception as e:
            error = to_a2a(e)
            outcome = type(error).__name__
            if isinstance(error, LimitExceededError):
                record_limit_error(request.scope.setdefault(RETRY_SECONDS, []), error)
            if isinstance(error, PermissionDeniedError):
                refusal_log.record_denial(error, RequestSource.of_http(request), user.user_name)
            return rest_error(error)
        except BaseException:
            outcome = DISCONNECTED
            raise
        finally:
            limits.metrics.count_request("", name, outcome)

    return endpoint
