"""The connections that posts go over: HTTP/2 where a host offers it over TLS, HTTP/1.1 everywhere else.

No host loses by that: one that leaves a post over HTTP/2 unanswered, whatever the reason, is spoken to in HTTP/1.1 for
ten minutes. So what is broken in HTTP/2 only costs a post now and then, which is made again.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from types import TracebackType

import httpcore

from ..clock import SYSTEM_CLOCK, Clock
from .failures import had_hung_up
from .http2 import Http2Connection
from .network import CONNECT_TIMEOUT

KEPT_OPEN = 64
"""Idle connections; the rest is closed."""
KEPT_FOR = 10.0
"""Seconds that a connection may be idle."""
PLAIN_FOR = 600.0
"""Seconds for which HTTP/2 is not offered to a host that did not answer over it."""
MOST_PLAIN = 10_000
"""So many such hosts are remembered."""


class Connections:
    """Connections of which each is for one request at a time; `hosts` sees to it that there are not too many of these.
    `ssl_context` is for https alone.

    httpcore's own pool looks at all its connections, and asks the system about each, before a request and behind it.
    """

    def __init__(
        self,
        backend: httpcore.AsyncNetworkBackend,
        ssl_context: ssl.SSLContext | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._backend = backend
        self._tls = ssl_context
        self._clock = clock
        self._plain: OrderedDict[str, float] = OrderedDict()  # until when
        self._idle: OrderedDict[httpcore.AsyncConnectionInterface, float] = OrderedDict()  # since when, oldest first
        self._closed = False

    def stream(self, request: httpcore.Request) -> Exchange:
        """To be entered for the answer to `request`. That has its timeouts as httpcore's extension, and an `on_connect`
        that is called before a connection is made for it. Raises httpcore's exceptions, and the backend's own."""
        return Exchange(self, request)

    def speaks_http2_to(self, origin: httpcore.Origin) -> bool:
        """Whether it is offered there now."""
        return self._clock.monotonic() >= self._plain.get(str(origin), 0.0)

    def no_http2_to(self, origin: httpcore.Origin) -> None:
        """Offers it no more, for a while."""
        self._plain[str(origin)] = self._clock.monotonic() + PLAIN_FOR
        self._plain.move_to_end(str(origin))
        if len(self._plain) > MOST_PLAIN:
            self._plain.popitem(last=False)

    async def connect(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        """A connection in the protocol that the host chose."""
        host = origin.host.decode("ascii")
        stream = await self._backend.connect_tcp(host, origin.port, timeout=CONNECT_TIMEOUT)
        if origin.scheme == b"https":
            assert self._tls is not None
            offered = ["h2", "http/1.1"] if self.speaks_http2_to(origin) else ["http/1.1"]
            self._tls.set_alpn_protocols(offered)  # of the handshake that begins next
            stream = await stream.start_tls(self._tls, server_hostname=host, timeout=CONNECT_TIMEOUT)
            if stream.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                return Http2Connection(origin, stream, KEPT_FOR, self._clock)
        return httpcore.AsyncHTTP11Connection(origin, stream, KEPT_FOR)

    async def take(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface | None:
        """An idle connection that leads there, the one used last; None: one has to be made."""
        while found := next((one for one in reversed(self._idle) if one.can_handle_request(origin)), None):
            del self._idle[found]
            outdated = isinstance(found, Http2Connection) and not self.speaks_http2_to(origin)
            if not outdated and not found.has_expired():
                return found
            await found.aclose()
        return None

    async def leave(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """Keeps a connection that is idle for the next request; closes it if it is not, and those idle for too long."""
        if self._closed or not connection.is_idle():
            await connection.aclose()
            return
        now = self._clock.monotonic()
        self._idle[connection] = now
        while len(self._idle) > KEPT_OPEN or now - next(iter(self._idle.values())) > KEPT_FOR:
            await self._idle.popitem(last=False)[0].aclose()

    async def aclose(self) -> None:
        """Closes what is idle, and the others when their requests are over."""
        self._closed = True
        while self._idle:
            await self._idle.popitem()[0].aclose()


class Exchange:
    """One request and its answer, over one connection."""

    def __init__(self, pool: Connections, request: httpcore.Request) -> None:
        self._pool = pool
        self._request = request
        self._connection: httpcore.AsyncConnectionInterface
        self._response: httpcore.Response

    async def __aenter__(self) -> httpcore.Response:
        origin = self._request.url.origin
        while True:
            kept = await self._pool.take(origin)
            if kept is None:
                self._request.extensions["on_connect"]()
            connection = self._connection = kept or await self._pool.connect(origin)
            try:
                self._response = await connection.handle_async_request(self._request)
            except httpcore.ConnectionNotAvailable:  # given up by the other side while it was idle
                await connection.aclose()
            except BaseException as e:  # also the cancellation that a timeout is
                says_nothing = not isinstance(e, httpcore.LocalProtocolError) and (kept is None or not had_hung_up(e))
                if isinstance(connection, Http2Connection) and says_nothing:
                    self._pool.no_http2_to(origin)
                await connection.aclose()
                raise
            else:
                return self._response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self._response.aclose()
        finally:
            await self._pool.leave(self._connection)
