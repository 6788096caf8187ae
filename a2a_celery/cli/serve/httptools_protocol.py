"""uvicorn's protocol on httptools (the extra ``fast``) with bounds for heads, chunk framing and trailers.

h11 reads about 64 KiB of a request's headers. httptools, as uvicorn uses it, reads any number of headers and trailers
into memory. uvicorn imports this module by its name, and only where httptools is installed.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .h11_protocol import HeadTimeout

MAX_FRAMING = 1 << 16
"""Bytes of a message between its start, two pieces of its body, and its end, beyond the read that they begin in.

One read is 256 KiB at most.
"""


class BoundedProtocol(HeadTimeout, HttpToolsProtocol):
    """Close a connection whose headers, chunk extensions or trailers do not end. Headers get a 400 first."""

    _in_message = False
    _in_head = False
    _has_progress = False
    _framing = 0

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which belongs to one request or to several."""
        self._has_progress = False
        super().data_received(data)
        if self._has_progress or not self._in_message or self.transport.is_closing():
            return
        self._framing += len(data)
        if self._framing > MAX_FRAMING:
            if self._in_head:
                self.send_400_response("The request's headers are too large.")
            else:
                self.transport.close()  # the response may have begun

    def on_message_begin(self) -> None:
        """Start to count the head of a request."""
        self._in_message = self._in_head = True
        self._progress()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. A trailer is dropped: uvicorn would add it to the headers that the application reads."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head."""
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        self._progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._in_message = False
        super().on_message_complete()

    def _progress(self) -> None:
        self._has_progress = True
        self._framing = 0
