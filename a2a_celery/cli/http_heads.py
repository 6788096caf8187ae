"""How the gateway's server reads HTTP: with httptools where that is installed (the extra ``fast``), else with h11.

h11 reads about 64 KiB of a request's headers; httptools, as uvicorn uses it, any number, which is memory. So here it
does not either. This module is imported by its name, by uvicorn, and only where there is httptools.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_OF_A_HEAD = 1 << 16
"""Bytes of a request's line and headers, behind what came with their first bytes: one read, 256 KiB at most."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, for one connection; a head that does not end is answered 400 and its connection closed, as by h11."""

    _in_head = False
    _began_now = False
    _heard = 0

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        self._began_now = False
        super().data_received(data)
        if self._in_head and not self._began_now and not self.transport.is_closing():
            self._heard += len(data)
            if self._heard > MOST_OF_A_HEAD:
                self.send_400_response("The request's headers are too large.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = self._began_now = True
        self._heard = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._in_head = False
        super().on_headers_complete()
