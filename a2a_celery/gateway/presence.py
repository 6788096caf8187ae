"""Nothing waits for the end of a task on behalf of a client that has gone away; the task itself goes on."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from .extensions import Endpoint

LOOK_FOR_CLIENT = 2.0
"""Seconds between two looks whether the client of a call that takes long is still there."""

CLIENT_CLOSED_REQUEST = 499
"""What proxies log for such a request; nobody reads it."""


async def while_there(endpoint: Endpoint, request: Request) -> Response:
    """What `endpoint` answers, as long as somebody is there to read it."""
    looking = _Looking(request)
    try:
        return await endpoint(request)
    except asyncio.CancelledError:
        if not looking.is_the_reason():
            raise
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        looking.end()


class _Looking:
    """Cancels the task of now when the client of its `request` is gone. A call that is short costs a timer, no task."""

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working = task
        self._request = request
        self._is_gone = False
        self._looks: asyncio.Task[None] | None = None
        self._again()

    def is_the_reason(self) -> bool:
        """Whether the task was cancelled for this, and for nothing else; to be asked once."""
        return self._is_gone and self._working.uncancel() == 0

    def end(self) -> None:
        """The request has its answer."""
        self._timer.cancel()
        if self._looks is not None:
            self._looks.cancel()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_FOR_CLIENT, self._begin)

    def _begin(self) -> None:
        self._looks = asyncio.create_task(self._look(), name="a2a-client-there")

    async def _look(self) -> None:
        if await self._request.is_disconnected():
            self._is_gone = True
            self._working.cancel()
        else:
            self._again()
