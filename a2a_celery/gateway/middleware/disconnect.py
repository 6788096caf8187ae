"""Cancellation of calls whose client has disconnected. The task of the call continues."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from .extensions import Endpoint

DISCONNECT_POLL_INTERVAL = 2.0
"""Seconds between two checks of the client's connection during a long call."""

CLIENT_CLOSED_REQUEST = 499
"""Status that proxies log for such a request. No client receives it."""


async def cancel_on_disconnect(endpoint: Endpoint, request: Request) -> Response:
    """Return the response of `endpoint`, and cancel the endpoint when its client disconnects."""
    looking = _DisconnectWatch(request)
    try:
        return await endpoint(request)
    except asyncio.CancelledError:
        if not looking.is_the_reason():
            raise
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        looking.end()


class _DisconnectWatch:
    """Cancels the current task when the client of `request` disconnects. A short call costs a timer and no task."""

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working = task
        self._request = request
        self._is_gone = False
        self._looks: asyncio.Task[None] | None = None
        self._again()

    def is_the_reason(self) -> bool:
        """Return whether the disconnect is the only reason of the cancellation. Call it once."""
        return self._is_gone and self._working.uncancel() == 0

    def end(self) -> None:
        """Stop the checks."""
        self._timer.cancel()
        if self._looks is not None:
            self._looks.cancel()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DISCONNECT_POLL_INTERVAL, self._begin)

    def _begin(self) -> None:
        self._looks = asyncio.create_task(self._look(), name="a2a-client-there")

    async def _look(self) -> None:
        if await self._request.is_disconnected():
            self._is_gone = True
            self._working.cancel()
        else:
            self._again()
