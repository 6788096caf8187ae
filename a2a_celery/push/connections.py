"""The connections that posts go over: HTTP/2 where a host offers it over TLS, HTTP/1.1 everywhere else.

No host loses by that: one that leaves a post over HTTP/2 unanswered, whatever the reason, is spoken to in HTTP/1.1 for
ten minutes. So what is broken in HTTP/2 only costs a post now and then, which is made again.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

import httpcore

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


class Connections(httpcore.AsyncConnectionPool):
    """A pool of `most` connections. `ssl_context` is for https alone.

    A request has its timeouts as httpcore's extension, and an `on_connect` that is called before a connection is made
    for it.
    """

    def __init__(
        self,
        backend: httpcore.AsyncNetworkBackend,
        ssl_context: ssl.SSLContext | None,
        most: int,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(max_connections=most, max_keepalive_connections=KEPT_OPEN)
        self._backend = backend
        self._tls = ssl_context
        self._clock = clock
        self._plain: OrderedDict[str, float] = OrderedDict()  # until when

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        """One that is made when its first request comes."""
        return _Connection(self, origin)

    def speaks_http2_to(self, origin: httpcore.Origin) -> bool:
        """Whether it is offered there now."""
        return self._clock() >= self._plain.get(str(origin), 0.0)

    def no_http2_to(self, origin: httpcore.Origin) -> None:
        """Offers it no more, for a while."""
        self._plain[str(origin)] = self._clock() + PLAIN_FOR
        self._plain.move_to_end(str(origin))
        if len(self._plain) > MOST_PLAIN:
            self._plain.popitem(last=False)

    async def connect(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        """A connection in the protocol that the host chose. Raises httpcore's exceptions, and the backend's own."""
        host = origin.host.decode("ascii")
        stream = await self._backend.connect_tcp(host, origin.port, timeout=CONNECT_TIMEOUT)
        if origin.scheme == b"https":
            assert self._tls is not None
            offered = ["h2", "http/1.1"] if self.speaks_http2_to(origin) else ["http/1.1"]
            self._tls.set_alpn_protocols(offered)  # of the handshake that begins next
            stream = await stream.start_tls(self._tls, server_hostname=host, timeout=CONNECT_TIMEOUT)
            if stream.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                return Http2Connection(origin, stream, KEPT_FOR)
        return httpcore.AsyncHTTP11Connection(origin, stream, KEPT_FOR)


class _Connection(httpcore.AsyncConnectionInterface):
    """One place of the pool: of one request at a time, that of the first until it is connected."""

    def __init__(self, pool: Connections, origin: httpcore.Origin) -> None:
        self._pool = pool
        self._origin = origin
        self._made: httpcore.AsyncConnectionInterface | None = None
        self._failed = False

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        is_new = self._made is None
        if self._made is None:
            try:
                request.extensions["on_connect"]()
                self._made = await self._pool.connect(self._origin)
            except BaseException:
                self._failed = True
                raise
        try:
            return await self._made.handle_async_request(request)
        except (httpcore.ConnectionNotAvailable, httpcore.LocalProtocolError):
            raise
        except BaseException as e:  # also the cancellation that a timeout is
            if isinstance(self._made, Http2Connection) and (is_new or not had_hung_up(e)):
                self._pool.no_http2_to(self._origin)
            raise

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        return origin == self._origin

    def is_available(self) -> bool:
        return self._made is not None and self._made.is_available()

    def is_idle(self) -> bool:
        return self._failed if self._made is None else self._made.is_idle()

    def has_expired(self) -> bool:
        if self._made is None:
            return self._failed
        outdated = isinstance(self._made, Http2Connection) and not self._pool.speaks_http2_to(self._origin)
        return self._made.has_expired() or (outdated and self._made.is_idle())

    def is_closed(self) -> bool:
        return self._failed if self._made is None else self._made.is_closed()

    def info(self) -> str:
        return "CONNECTING" if self._made is None else self._made.info()
