"""ASGI middleware that logs each HTTP request when its response has ended."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

NO_RESPONSE = 499
"""Status in the line of a request whose client disconnected before the response."""
SERVER_ERROR = 500
"""Status in the line of a request whose application raised an exception before the response."""


@dataclass(slots=True)
class AccessedTask:
    """Task of an HTTP request, for the line of the access log."""

    task_id: str = ""


accessed_task: ContextVar[AccessedTask | None] = ContextVar("accessed_task", default=None)
"""Task of the current HTTP request. `AccessLog` sets the variable, and the request's operation fills in the id."""


class AccessLog:
    """ASGI middleware that logs the client, the request as sent, the status, the duration and the task of each request.

    uvicorn's access log does not know the task, and escapes the colon of paths such as `/message:send`.
    """

    def __init__(self, app: ASGIApp, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and log an HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, task = self._clock.monotonic(), NO_RESPONSE, AccessedTask()

        async def send_and_read_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = accessed_task.set(task)
        try:
            await self._app(scope, receive, send_and_read_status)
        except Exception:
            status = SERVER_ERROR if status == NO_RESPONSE else status
            raise
        finally:
            accessed_task.reset(token)
            logger.info(
                '%s - "%s %s HTTP/%s" %d %.0f ms%s',
                ":".join(map(str, scope.get("client") or ("",))),
                scope["method"],
                _target(scope),
                scope["http_version"],
                status,
                (self._clock.monotonic() - began) * 1000,
                f" task {task.task_id}" if task.task_id else "",
            )


def _target(scope: Scope) -> str:
    """Return the path and the query of a request as the client sent them."""
    query: bytes = scope["query_string"]
    raw_path: bytes = scope["raw_path"]
    return (raw_path + b"?" + query if query else raw_path).decode("ascii", "backslashreplace")
