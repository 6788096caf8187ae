"""HTTP transport that calls an ASGI application in this process, and streams its responses.

``httpx.ASGITransport`` returns a response only when it is complete, but an open stream never completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

import httpx
from starlette.types import ASGIApp

CLIENT = ("127.0.0.1", 1)
"""Address of the client that the application sees."""


class InProcessTransport(httpx.AsyncBaseTransport):
    """httpx transport that calls the ASGI application `asgi`."""

    def __init__(self, asgi: ASGIApp) -> None:
        self._asgi = asgi

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Call the application, and return its response when the headers are known."""
        exchange = _Exchange(self._asgi, _scope(request), await request.aread())
        status, headers = await exchange.begin()
        return httpx.Response(status, headers=headers, stream=exchange)


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port or 80),
        "client": CLIENT,
        "root_path": "",
    }


class _Exchange(httpx.AsyncByteStream):
    """HTTP request and its response. Closing the response disconnects the client."""

    def __init__(self, asgi: ASGIApp, scope: dict[str, Any], body: bytes) -> None:
        self._asgi, self._scope, self._body = asgi, scope, body
        self._is_sent = False
        self._disconnected = asyncio.Event()
        self._messages: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue()
        self._call: asyncio.Task[None]

    async def begin(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Call the application, and return the status and the headers of its response."""
        self._call = asyncio.create_task(self._serve(), name="a2a-in-process-request")
        try:
            start = await self._messages.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if start is None:
            await self._call  # raises the application's error
            raise httpx.RemoteProtocolError("the application sent no response")
        return start["status"], list(start.get("headers", ()))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return
        await self._call

    async def aclose(self) -> None:
        """Disconnect the client, and wait until the application has ended the request."""
        self._disconnected.set()
        with suppress(Exception):
            await self._call

    async def _serve(self) -> None:
        try:
            await self._asgi(self._scope, self._receive, self._messages.put)
        finally:
            await self._messages.put(None)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}
