"""Keep-alive HTTP/1.1 connections to webhooks. Each connection serves one request at a time.

The circuit breaker limits the connections in use, so the pool does not. The pool of httpcore is not used because it
scans all connections, with a system call for each, before and after every request.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore

from ..clock import SYSTEM_CLOCK, Clock

MAX_IDLE_CONNECTIONS = 64
KEEPALIVE_EXPIRY = 10.0
"""Seconds that a connection may be idle."""


class ConnectionPool:
    """Pool of connections that `backend` opens. `ssl_context` is used for https only."""

    def __init__(
        self, backend: httpcore.AsyncNetworkBackend, ssl_context: ssl.SSLContext | None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._backend = backend
        self._ssl_context = ssl_context
        self._clock = clock
        # The value is the time since which the connection is idle; the oldest is first.
        self._idle: OrderedDict[httpcore.AsyncConnectionInterface, float] = OrderedDict()
        self._is_closed = False

    @asynccontextmanager
    async def stream(self, request: httpcore.Request) -> AsyncIterator[httpcore.Response]:
        """Send `request` and yield its response.

        The extension `timeout` of the request has its timeouts. Its extension `on_connect` is called before a new
        connection is opened for the request.

        Raises:
            httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException: The exchange failed.
            AddressRefused: The host has no allowed address.
        """
        while True:
            connection = await self._acquire(request)
            try:
                response = await connection.handle_async_request(request)
            except httpcore.ConnectionNotAvailable:  # the server closed the idle connection
                await connection.aclose()
            except BaseException:  # includes the cancellation by a timeout
                await connection.aclose()
                raise
            else:
                break
        try:
            yield response
        finally:
            try:
                await response.aclose()
            finally:
                await self._release(connection)

    async def aclose(self) -> None:
        """Close the idle connections. A connection in use is closed when its request ends."""
        self._is_closed = True
        while self._idle:
            await self._idle.popitem()[0].aclose()

    async def _acquire(self, request: httpcore.Request) -> httpcore.AsyncConnectionInterface:
        """Return the idle connection to the origin that was used last, or a new connection."""
        origin = request.url.origin
        while idle := next((c for c in reversed(self._idle) if c.can_handle_request(origin)), None):
            del self._idle[idle]
            if not idle.has_expired():
                return idle
            await idle.aclose()
        request.extensions["on_connect"]()
        return httpcore.AsyncHTTPConnection(origin, self._ssl_context, KEEPALIVE_EXPIRY, network_backend=self._backend)

    async def _release(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """Keep an idle connection for the next request. Close it if it is not idle or the pool is closed."""
        if self._is_closed or not connection.is_idle():
            await connection.aclose()
            return
        now = self._clock.monotonic()
        self._idle[connection] = now
        while len(self._idle) > MAX_IDLE_CONNECTIONS or now - next(iter(self._idle.values())) > KEEPALIVE_EXPIRY:
            await self._idle.popitem(last=False)[0].aclose()
