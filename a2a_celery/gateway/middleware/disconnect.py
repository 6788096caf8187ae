"""Cancellation of calls whose client has disconnected. The A2A task that a call started continues."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from .extensions import Endpoint

DISCONNECT_POLL_INTERVAL = 2.0
"""Seconds between two checks of the client's connection during a long call."""

CLIENT_CLOSED_REQUEST = 499
"""HTTP status that proxies log for a request whose client has disconnected. No client receives it."""


async def cancel_on_disconnect(endpoint: Endpoint, request: Request) -> Response:
    """Return the response of `endpoint`, and cancel the endpoint when its client disconnects."""
    watch = _DisconnectWatch(request)
    try:
        return await endpoint(request)
    except asyncio.CancelledError:
        if not watch.is_the_reason():
            raise
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        watch.end()


class _DisconnectWatch:
    """Watch that cancels the current asyncio task when the client of `request` disconnects. A short call needs only a
    timer, not another asyncio task."""

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working = task
        self._request = request
        self._is_gone = False
        self._check_task: asyncio.Task[None] | None = None
        self._schedule()

    def is_the_reason(self) -> bool:
        """Return True if the disconnect is the only reason for the cancellation. Call this method only once."""
        return self._is_gone and self._working.uncancel() == 0

    def end(self) -> None:
        """Stop the checks."""
        self._timer.cancel()
        if self._check_task is not None:
            self._check_task.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DISCONNECT_POLL_INTERVAL, self._begin)

    def _begin(self) -> None:
        self._check_task = asyncio.create_task(self._check(), name="a2a-client-there")

    async def _check(self) -> None:
        if await self._request.is_disconnected():
            self._is_gone = True
            self._working.cancel()
        else:
            self._schedule()
