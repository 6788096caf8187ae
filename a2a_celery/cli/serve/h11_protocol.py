"""Time limit for request headers in uvicorn's protocol classes. uvicorn itself has no such limit."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 30.0
"""Seconds from the opening of a connection, or from the first byte of a further request, to the end of the headers."""


class HeadTimeout:
    """Mixin for a uvicorn protocol class that closes a connection if headers are not complete within `HEAD_TIMEOUT`.

    Between two requests, uvicorn's own ``timeout_keep_alive`` applies.
    """

    transport: Any
    cycle: Any
    _head_timer: asyncio.TimerHandle | None = None
    _last_cycle: Any = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first headers of the connection."""
        super().connection_made(transport)  # type: ignore[misc]
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse `data`. The timer starts with the first byte of a further request and stops at the end of the
        headers."""
        if self._head_timer is None and self._last_cycle is not None and self._last_cycle.response_complete:
            self._start_timer()
        super().data_received(data)  # type: ignore[misc]
        if self.cycle is not self._last_cycle:
            self._last_cycle = self.cycle
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._last_cycle = None
        super().connection_lost(exc)  # type: ignore[misc]

    def _start_timer(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class BoundedH11Protocol(HeadTimeout, H11Protocol):
    """uvicorn's h11 protocol with a time limit for headers. h11 itself limits the size of headers and trailers."""
