"""Limits for requests in uvicorn's protocol classes. uvicorn itself has no time limit for headers, and discards the
rest of a refused body as fast as it arrives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...integrations.uvicorn import UVICORN

UVICORN.require(H11Protocol, "conn", "cycle", "flow", "on_response_complete", "shutdown")

MAX_FRAMING = 1 << 16
"""Maximum number of bytes of a request before its body, between two pieces of the body, or after the body.

With httptools, a read in which the request or a piece of the body begins is not counted. One read is at most 256 KiB.
"""

VERSIONS = ("1.0", "1.1")
"""Supported versions of HTTP."""

ABSOLUTE_FORM = re.compile(rb"https?://[^/?]*", re.IGNORECASE)
"""Start of a request target that also contains the scheme and the host. Source: RFC 9112, section 3.2.2."""

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

    Args:
        rate: Bytes per second that are discarded, over all connections.
        max_wait: Maximum seconds until the next read of a connection.
    """

    def __init__(self, rate: int = DISCARD_RATE, max_wait: float = MAX_DISCARD_WAIT) -> None:
        self._rate = rate
        self._max_wait = max_wait
        self._free_at = 0.0

    def wait(self, now: float, size: int) -> float | None:
        """Count `size` discarded bytes. Return the seconds until the next read of their connection, or None if they
        would exceed `max_wait`."""
        wait = max(0.0, self._free_at - now) + size / self._rate
        if wait > self._max_wait:
            return None
        self._free_at = now + wait
        return wait


class HeadTimeout:
    """Mixin for a uvicorn protocol class that closes a connection if headers are not complete in time, and discards
    refused bodies at a pace.

    Between two requests, uvicorn's own ``timeout_keep_alive`` applies.

    At shutdown, uvicorn closes a connection that has not begun its first request. The request may already be in the
    socket's buffer, and a proxy does not send a POST again. This mixin waits for the request.

    Attributes:
        head_timeout: See `HEAD_TIMEOUT`.
        first_request_timeout: See `FIRST_REQUEST_TIMEOUT`.
        discard_pace: Pace of all connections of the process.
    """

    head_timeout = HEAD_TIMEOUT
    first_request_timeout = FIRST_REQUEST_TIMEOUT
    discard_pace = DiscardPace()
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
        """Begin the graceful shutdown. A connection without a request stays open for `first_request_timeout`
        seconds."""
        shut_down = super().shutdown  # type: ignore[misc]
        if self.cycle is None:
            asyncio.get_running_loop().call_later(self.first_request_timeout, self._unless_closed, shut_down)
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
        wait = self.discard_pace.wait(loop.time(), size)
        if wait is None:
            self.transport.close()
        else:
            self.flow.pause_reading()
            loop.call_later(wait, self._unless_closed, self.flow.resume_reading)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self.transport.is_closing():
            callback()

    def _start_timer(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(self.head_timeout, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Http1Connection(h11.Connection):
    """Connection that reads requests as strictly as httptools, and also accepts targets in absolute form.

    The connection ignores offers to upgrade to another protocol, for each of which uvicorn logs a warning. It refuses
    other versions than HTTP/1.0 and HTTP/1.1, and bodies with two framings. A proxy may use the other framing, and read
    a part of the body as another request.

    Source: RFC 9110, section 7.8; RFC 9112, section 6.3.
    """

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            RemoteProtocolError: The request is invalid, has another version, or has Content-Length and
                Transfer-Encoding.
        """
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if event.http_version.decode() not in VERSIONS:
            raise h11.RemoteProtocolError("unsupported version of HTTP")
        names = {name for name, _ in event.headers}
        if names >= {b"content-length", b"transfer-encoding"}:
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding")
        is_origin_form = event.target.startswith(b"/")
        if b"upgrade" not in names and is_origin_form:
            return event
        headers = [(name, value) for name, value in event.headers if name != b"upgrade"]
        target = event.target if is_origin_form else _origin_form(event.target)
        return h11.Request(method=event.method, headers=headers, target=target, http_version=event.http_version)


def _origin_form(target: bytes) -> bytes:
    absolute = ABSOLUTE_FORM.match(target)
    if absolute is None:
        return target
    path = target[absolute.end() :]
    return path if path.startswith(b"/") else b"/" + path


class BoundedH11Protocol(HeadTimeout, H11Protocol):
    """uvicorn's h11 protocol with limits for the time and the size of headers, chunk framing and trailers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = Http1Connection(h11.SERVER, MAX_FRAMING)
