"""uvicorn's httptools protocol (the extra ``fast``) with limits on headers, chunk framing and trailers.

h11 reads at most about 64 KiB of a request's headers. httptools, as uvicorn uses it, reads any number of headers and
trailers into memory. uvicorn imports this module by name, and only if httptools is installed.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .h11_protocol import HeadTimeout

MAX_FRAMING = 1 << 16
"""Maximum bytes of a message before its body, between two pieces of the body, or after it, not counting the read in
which they begin.

One read is at most 256 KiB.
"""


class BoundedProtocol(HeadTimeout, HttpToolsProtocol):
    """Protocol that closes a connection whose headers, chunk extensions or trailers are too large. For headers, a 400
    response is sent first."""

    _in_message = False
    _in_head = False
    _has_progress = False
    _framing = 0

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which may belong to one or several requests."""
        self._has_progress = False
        super().data_received(data)
        if self._has_progress or not self._in_message or self.transport.is_closing():
            return
        self._framing += len(data)
        if self._framing > MAX_FRAMING:
            if self._in_head:
                self.send_400_response("The request's headers are too large.")
            else:
                self.transport.close()  # the response may already have begun

    def on_message_begin(self) -> None:
        """Start counting the headers of a request."""
        self._in_message = self._in_head = True
        self._progress()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are dropped, because uvicorn would add them to the headers that the application
        reads."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Record the end of the headers."""
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of the request."""
        self._in_message = False
        super().on_message_complete()

    def _progress(self) -> None:
        self._has_progress = True
        self._framing = 0
