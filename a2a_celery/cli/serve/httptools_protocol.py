"""uvicorn's httptools protocol (the extra ``fast``) with limits, and with HTTP/1.1 as strict as with h11.

h11 reads at most about 64 KiB of a request's headers. httptools, as uvicorn uses it, reads any number of headers,
trailers and pipelined requests into memory. It also drops the body of a request that offers an upgrade, and sends
chunks to HTTP/1.0 clients. uvicorn imports this module by name, and only if httptools is installed.
"""

from __future__ import annotations

import asyncio
from random import uniform
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ...gateway.protocol_errors import REFUSAL_DELAY
from ...integrations.uvicorn import UVICORN
from .h11_protocol import MAX_FRAMING, VERSIONS, HeadTimeout

UVICORN.require(HttpToolsProtocol, "parser", "url", "headers", "cycle", "pipeline", "flow", "send_400_response")
UVICORN.require(RequestResponseCycle, "keep_alive", "disconnected", "message_event", "waiting_for_100_continue")
UVICORN.require(RequestResponseCycle, "chunked_encoding", "expected_content_length")

MAX_TRAILERS = 100
"""Maximum number of trailers of a request."""

MAX_PIPELINED = 16
"""Maximum number of requests of a connection that wait for the responses to earlier requests."""


class Http1Parser(HttpRequestParser):
    """Parser that ignores offers to upgrade to another protocol.

    httptools takes every offer: its request ends with the headers, and the body would be parsed as the next request.
    A new parser therefore parses the headers of such a request a second time, without ``Upgrade``.

    Args:
        protocol: Protocol with the callbacks. It ignores the headers of a request while `should_upgrade` returns True.

    Source: RFC 9110, section 7.8; MagicStack/httptools#124.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def feed_data(self, data: Any) -> None:
        """Parse `data`.

        Raises:
            HttpParserError: The data is not HTTP/1.1, or a callback has failed.
        """
        try:
            super().feed_data(data)
        except HttpParserUpgrade as offer:
            self._protocol.parser = Http1Parser(self._protocol)
            self._protocol.parser.feed_data(self._head_without_upgrade() + data[offer.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._protocol.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self._protocol.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


class Http10Cycle(RequestResponseCycle):
    """Request of an HTTP/1.0 client and its response, which is not sent in chunks.

    The end of the connection is the end of a body without Content-Length.
    """

    _has_length = False

    async def send(self, message: Any) -> None:
        """Send the start or a piece of the response."""
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._has_length:
                self.chunked_encoding = False
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HeadTimeout, HttpToolsProtocol):
    """Protocol that closes a connection whose headers, chunk extensions or trailers are too large. For headers, a 400
    response is sent first.

    A connection is also closed, after the last response, if more than `MAX_PIPELINED` requests wait for responses.

    Attributes:
        refusal_delay: See `REFUSAL_DELAY`.
    """

    refusal_delay = REFUSAL_DELAY
    _in_message = False
    _in_head = False
    _has_progress = False
    _framing = 0
    _trailers = 0
    _running: RequestResponseCycle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser = Http1Parser(self)

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

        If earlier requests wait for their responses, the connection is closed after the last of these responses.

        After the headers, the application may have begun its response. The connection is then closed without a 400
        response, after `refusal_delay`.
        """
        if self._in_message and not self._in_head:
            self.transport.pause_reading()
            delay = uniform(self.refusal_delay / 2, self.refusal_delay)
            asyncio.get_running_loop().call_later(delay, self.transport.close)
        elif self.cycle is not None and not self.cycle.response_complete:
            self.flow.pause_reading()
            self.cycle.keep_alive = False
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Start counting the headers of a request.

        Raises:
            ValueError: Too many requests wait for their responses. httptools then stops parsing.
        """
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
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
        """Start the request, or queue it if an earlier request waits for its response.

        Raises:
            ValueError: The request has another version than HTTP/1.0 and HTTP/1.1, not one Host, the method CONNECT, or
                another transfer coding than chunked. httptools then stops parsing.
        """
        version = self.parser.get_http_version()
        hosts = [name for name, _ in self.headers].count(b"host")
        if version not in VERSIONS or hosts > 1 or (hosts == 0 and version != "1.0"):
            raise ValueError("not HTTP/1.0 or HTTP/1.1")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise ValueError("unsupported transfer coding")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("no proxy")
            return  # `Http1Parser` parses the headers again
        self._in_head = False
        super().on_headers_complete()
        if version == "1.0":
            self.cycle.__class__ = Http10Cycle
            self.cycle.waiting_for_100_continue = False
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        """Forward a piece of the body to the application."""
        self._progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of the request."""
        if self.parser.should_upgrade():
            return
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the next request. While further requests wait for it, reading is paused."""
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect the running request. uvicorn disconnects the request that was received last."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _progress(self) -> None:
        self._has_progress = True
        self._framing = 0
