"""uvicorn's httptools protocol (the extra ``fast``) with limits on headers, chunk framing and trailers.

h11 reads at most about 64 KiB of a request's headers. httptools, as uvicorn uses it, reads any number of headers and
trailers into memory. uvicorn imports this module by name, and only if httptools is installed.
"""

from __future__ import annotations

import asyncio
from random import uniform

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...gateway.protocol_errors import REFUSAL_DELAY
from .h11_protocol import HeadTimeout

MAX_FRAMING = 1 << 16
"""Maximum number of bytes of a request before its body, between two pieces of the body, or after the body.

A read in which the request or a piece of the body begins is not counted. One read is at most 256 KiB.
"""

MAX_TRAILERS = 100
"""Maximum number of trailers of a request."""


class BoundedProtocol(HeadTimeout, HttpToolsProtocol):
    """Protocol that closes a connection whose headers, chunk extensions or trailers are too large. For headers, a 400
    response is sent first."""

    _in_message = False
    _in_head = False
    _has_progress = False
    _framing = 0
    _trailers = 0

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which may belong to several requests, and close the connection if the current message exceeds
        `MAX_FRAMING`."""
        self._has_progress = False
        super().data_received(data)
        if self._has_progress or not self._in_message or self.transport.is_closing():
            return
        self._framing += len(data)
        if self._framing > MAX_FRAMING:
            self.send_400_response("The request's headers are too large.")

    def send_400_response(self, msg: str) -> None:
        """Send a 400 response and close the connection.

        After the headers, the application may have begun its response. The connection is then closed without a 400
        response, after the delay of a refusal (see `REFUSAL_DELAY`).
        """
        if self._in_head or not self._in_message:
            super().send_400_response(msg)
        else:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(uniform(REFUSAL_DELAY / 2, REFUSAL_DELAY), self.transport.close)

    def on_message_begin(self) -> None:
        """Start counting the headers of a request."""
        self._in_message = self._in_head = True
        self._trailers = 0
        self._progress()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are dropped, because uvicorn would add trailers to the headers of the request.

        Raises:
            ValueError: The request has too many trailers. httptools then stops parsing.
        """
        if self._in_head:
            super().on_header(name, value)
        else:
            self._trailers += 1
            if self._trailers > MAX_TRAILERS:
                raise ValueError("too many trailers")

    def on_headers_complete(self) -> None:
        """Record the end of the headers."""
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Forward a piece of the body to the application."""
        self._progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of the request."""
        self._in_message = False
        super().on_message_complete()

    def _progress(self) -> None:
        self._has_progress = True
        self._framing = 0
