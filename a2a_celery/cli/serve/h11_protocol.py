"""Limits for requests in uvicorn's protocol classes. uvicorn itself has no time limit for headers, and discards the
rest of a refused body as fast as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 30.0
"""Seconds from the opening of a connection, or from the first byte of a further request, to the end of the headers."""

FIRST_REQUEST_TIMEOUT = 1.0
"""Seconds after the beginning of a shutdown in which a connection may send its first request."""

DISCARD_RATE = 1 << 25
"""Bytes per second of bodies whose response is complete that a process receives and discards, over all connections."""

FIRST_DISCARD = 1 << 15
"""Number of bytes that count as discarded when a response ends, so that connections do not begin at the same time."""

MAX_DISCARD_WAIT = 1.0
"""Maximum seconds for which such a connection waits before its next read. If the wait would be longer, the connection
is closed."""


class DiscardPace:
    """Pace at which a process discards the rest of bodies whose response is complete.

    Many clients read a refusal only after they have sent the complete body, so the rest of a refused body is received.
    Without the pace, a client that sends many large bodies would delay each turn of the event loop by many reads.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def wait(self, now: float, size: int) -> float | None:
        """Count `size` discarded bytes. Return the seconds until the next read of their connection, or None if they
        would exceed `MAX_DISCARD_WAIT`."""
        wait = max(0.0, self._free_at - now) + size / DISCARD_RATE
        if wait > MAX_DISCARD_WAIT:
            return None
        self._free_at = now + wait
        return wait


DISCARD_PACE = DiscardPace()


class HeadTimeout:
    """Mixin for a uvicorn protocol class that closes a connection if headers are not complete within `HEAD_TIMEOUT`,
    and discards refused bodies at the `DISCARD_PACE`.

    Between two requests, uvicorn's own ``timeout_keep_alive`` applies.

    At shutdown, uvicorn closes a connection that has not begun its first request. The request may already be in the
    socket's buffer, and a proxy does not send a POST again. This mixin waits for the request.
    """

    transport: Any
    flow: Any
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
        self._pace_discarding(len(data))

    def on_response_complete(self) -> None:
        """Prepare the connection for the next request."""
        super().on_response_complete()  # type: ignore[misc]
        self._pace_discarding(FIRST_DISCARD)

    def shutdown(self) -> None:
        """Begin the graceful shutdown. A connection without a request stays open for `FIRST_REQUEST_TIMEOUT`."""
        shut_down = super().shutdown  # type: ignore[misc]
        if self.cycle is None:
            asyncio.get_running_loop().call_later(FIRST_REQUEST_TIMEOUT, self._unless_closed, shut_down)
        else:
            shut_down()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._last_cycle = None
        super().connection_lost(exc)  # type: ignore[misc]

    def _pace_discarding(self, size: int) -> None:
        """Delay the next read if the response is complete, but the body of the request is not.

        Args:
            size: Number of bytes that were received after the response, or `FIRST_DISCARD` if it has just ended.
        """
        cycle = self.cycle
        if cycle is None or not (cycle.response_complete and cycle.more_body) or self.transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        wait = DISCARD_PACE.wait(loop.time(), size)
        if wait is None:
            self.transport.close()
        else:
            self.flow.pause_reading()
            loop.call_later(wait, self._unless_closed, self.flow.resume_reading)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self.transport.is_closing():
            callback()

    def _start_timer(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class BoundedH11Protocol(HeadTimeout, H11Protocol):
    """uvicorn's h11 protocol with a time limit for headers. h11 itself limits the size of headers and trailers."""
