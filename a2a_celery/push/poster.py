"""HTTP client that sends one POST to a webhook over a keep-alive HTTP/1.1 connection and returns the result.

`Poster` does not follow redirects, store cookies, use the proxies in the environment, or decompress responses.
Therefore, `Poster` uses httpcore, which has none of these features, instead of httpx.

============================ =======================================================================================
2xx                          `Delivered`, even if the body does not arrive
410                          `Gone`
429, 503                     `Retry`, with the delay from Retry-After
any other status, even 3xx   `Retry`
no HTTP response             `Retry`; the failure counts toward the host's circuit breaker
a forbidden address          `PostRefused`
no permit is free            `Deferred`; no request is sent, and no attempt is counted
============================ =======================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpcore

from ..clock import SYSTEM_CLOCK, Clock
from ..delays import parse_retry_after
from ..telemetry.log_redaction import redact_logs
from .circuit_breaker import PERMIT_TIMEOUT, CircuitBreaker, Deferred, Permit
from .network import (
    CONNECT_TIMEOUT,
    AddressRefused,
    CheckedBackend,
    HostNotFound,
    Network,
    Resolver,
    SystemResolver,
)
from .request import PostRequest
from .responses import BODY_TIMEOUT, WebhookResponse, describe_failure, is_disconnect, read_response
from .targets import Target, TargetRefused, parse_target

MAX_IDLE_CONNECTIONS = 64
KEEPALIVE_EXPIRY = 10.0
"""Seconds for which a connection may be idle."""


class ConnectionPool:
    """Pool of keep-alive connections.

    Args:
        backend: Network backend that opens the connections.
        ssl_context: TLS context for https, or None for http.
        clock: Source of time.
    """

    def __init__(
        self, backend: httpcore.AsyncNetworkBackend, ssl_context: ssl.SSLContext | None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._backend = backend
        self._ssl_context = ssl_context
        self._clock = clock
        # connection → time at which it became idle, oldest first
        self._idle: OrderedDict[httpcore.AsyncConnectionInterface, float] = OrderedDict()
        self._is_closed = False

    @asynccontextmanager
    async def stream(self, request: httpcore.Request) -> AsyncIterator[httpcore.Response]:
        """Send `request` and yield the response.

        The request extension `timeout` contains the timeouts. The request extension `on_connect` is a function that is
        called before a new connection is opened.

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
            except BaseException:  # includes cancellation by a timeout
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
        """Close the idle connections. Connections in use are closed when their requests end."""
        self._is_closed = True
        while self._idle:
            await self._idle.popitem()[0].aclose()

    async def _acquire(self, request: httpcore.Request) -> httpcore.AsyncConnectionInterface:
        """Return the most recently used idle connection to the origin, or a new connection."""
        origin = request.url.origin
        while idle := next((c for c in reversed(self._idle) if c.can_handle_request(origin)), None):
            del self._idle[idle]
            if not idle.has_expired():
                return idle
            await idle.aclose()
        request.extensions["on_connect"]()
        return httpcore.AsyncHTTPConnection(origin, self._ssl_context, KEEPALIVE_EXPIRY, network_backend=self._backend)

    async def _release(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """Return an idle connection to an open pool, or close the connection."""
        if self._is_closed or not connection.is_idle():
            await connection.aclose()
            return
        now = self._clock.monotonic()
        self._idle[connection] = now
        while len(self._idle) > MAX_IDLE_CONNECTIONS or now - next(iter(self._idle.values())) > KEEPALIVE_EXPIRY:
            await self._idle.popitem(last=False)[0].aclose()


logger = logging.getLogger(__name__)

POST_TIMEOUT = 15.0
"""Default timeout of a post in seconds, from the name lookup to the status of the response."""
MAX_CONNECTIONS_PER_POST = 3
"""Maximum number of connections that a post tries if the server has closed idle connections."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Result of a post that the receiver accepted.

    Attributes:
        status: HTTP status of the response.
        allowed_origin: Value of the response header ``WebHook-Allowed-Origin``, or "".
    """

    status: int
    allowed_origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Result of a failed post that may succeed later.

    Attributes:
        reason: Reason for operators.
        retry_after: Retry-After of the receiver in seconds, or None.
        response: HTTP response, or None if the receiver sent no response.
        is_host_not_found: True if the host's name was not found.
        address: Host and forbidden address, or ""; see `PostRefused`.
    """

    reason: str
    retry_after: float | None = None
    response: WebhookResponse | None = None
    is_host_not_found: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """Result of a post to which the receiver responded with 410. No further events are posted for the config."""

    response: WebhookResponse


@dataclass(frozen=True, slots=True)
class PostRefused:
    """Result of a post to a forbidden target. A later post can succeed only if the address or `allow_networks` changes.

    Attributes:
        reason: Reason for operators, without an address.
        address: Host and forbidden address, for operators with access to the store or the logs, or "".
    """

    reason: str
    address: str = ""


PostResult = Delivered | Retry | Gone | PostRefused | Deferred


@dataclass(frozen=True, slots=True)
class Route:
    """Target of a post, and the permit for the post."""

    target: Target
    permit: Permit


class Poster:
    """HTTP client for webhooks. An instance must be used on the event loop on which it was created.

    Args:
        allow_networks: Networks that are allowed in addition to public addresses.
        resolver: Name resolver, or None for a `SystemResolver`. `aclose` closes the resolver.
        ssl_context: TLS context, or None to trust the certificates of the system and certifi.
        circuit_breaker: Issuer of permits for posts, or None for a new `CircuitBreaker`.
        timeout: Timeout of a post in seconds, from the name lookup to the status of the response.
        clock: Source of time.
    """

    def __init__(
        self,
        allow_networks: Sequence[Network] = (),
        *,
        resolver: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        timeout: float = POST_TIMEOUT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        redact_logs()
        self._allow_networks = tuple(allow_networks)
        self._resolver = SystemResolver(clock=clock) if resolver is None else resolver
        self._circuit_breaker = CircuitBreaker(clock=clock) if circuit_breaker is None else circuit_breaker
        self._timeout = timeout
        self._clock = clock
        self._pools = {
            "https": self._new_pool(ssl_context or httpcore.default_ssl_context()),
            "http": self._new_pool(None),
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections and the resolver."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._resolver.aclose)
            for pool in self._pools.values():
                closing.push_async_callback(pool.aclose)

    def deferral(self, url: str, *, owner: str = "") -> Deferred | None:
        """Check whether a post of `owner` to `url` would be deferred immediately, without acquiring a permit.

        Returns:
            A Deferred, or None if the post would not be deferred.
        """
        try:
            target = parse_target(url, self._allow_networks)
        except TargetRefused:
            return None
        return self._circuit_breaker.deferral(_server(target), owner=owner)

    async def acquire_route(
        self, url: str, *, owner: str = "", timeout: float = PERMIT_TIMEOUT
    ) -> Route | Deferred | PostRefused:
        """Acquire the permit for a post of `owner` to `url`. The caller must then call `post` to release the permit.

        Args:
            url: URL of the webhook.
            owner: Owner of the post.
            timeout: Maximum seconds to wait for a permit of a busy host.

        Returns:
            The route, a Deferred if no permit is free, or a PostRefused if the URL is invalid or its host is forbidden.
        """
        try:
            target = parse_target(url, self._allow_networks)
        except TargetRefused as e:
            return PostRefused(str(e))
        permit = await self._circuit_breaker.acquire(_server(target), timeout, owner=owner)
        return permit if isinstance(permit, Deferred) else Route(target, permit)

    async def post(self, request: PostRequest, route: Route | Deferred | PostRefused | None = None) -> PostResult:
        """Post `request` once and release the permit of `route`.

        Args:
            request: Request to send.
            route: Result of `acquire_route`, or None to acquire a permit without waiting. A Deferred or PostRefused is
                returned unchanged.
        """
        if route is None:
            route = await self.acquire_route(request.url, timeout=0)
        if not isinstance(route, Route):
            return route
        has_responded = None
        try:
            result = await self._exchange(route.target, request)
            if not isinstance(result, PostRefused):
                has_responded = not isinstance(result, Retry) or result.response is not None
            return result
        finally:
            route.permit.release(has_responded)

    async def has_consent(self, url: str, origin: str, *, owner: str = "") -> bool:
        """Ask the receiver at `url` for consent, and return True if the receiver allows posts from `origin`."""
        route = await self.acquire_route(url, owner=owner)
        result = await self.post(PostRequest.for_consent(url, origin), route)
        return isinstance(result, Delivered) and result.allowed_origin.lower() in ("*", origin.lower())

    async def _exchange(self, target: Target, request: PostRequest) -> PostResult:
        """Send `request`. The status of the response must arrive within the timeout of a post."""
        try:
            async with self._clock.timeout(self._timeout) as deadline:
                connections = 0
                while True:
                    probe, connections = ConnectionProbe(), connections + 1
                    try:
                        return await self._send(target, request, probe, deadline)
                    except (httpcore.NetworkError, httpcore.RemoteProtocolError) as e:
                        is_stale = not probe.is_new and is_disconnect(e)  # the server closed an idle connection
                        if not is_stale or connections == MAX_CONNECTIONS_PER_POST:
                            raise
        except AddressRefused as e:
            return PostRefused(str(e), e.address)
        except (httpcore.LocalProtocolError, UnicodeEncodeError):
            return PostRefused("the request cannot be sent over HTTP: its URL or a header is invalid")
        except Exception as e:
            reason = describe_failure(e, self._timeout)
            return Retry(reason, is_host_not_found=isinstance(e, HostNotFound))

    async def _send(
        self, target: Target, request: PostRequest, probe: ConnectionProbe, deadline: asyncio.Timeout
    ) -> PostResult:
        webhook_response: WebhookResponse | None = None
        retry_after = allowed_origin = b""
        try:
            async with self._stream(target, request, probe) as response:
                webhook_response = WebhookResponse(response.status)  # an error in the body does not change the result
                deadline.reschedule(asyncio.get_running_loop().time() + BODY_TIMEOUT + 1)
                headers = {name.lower(): value for name, value in reversed(response.headers)}  # the first value wins
                retry_after = headers.get(b"retry-after", b"")
                allowed_origin = headers.get(b"webhook-allowed-origin", b"")
                webhook_response = await read_response(response, request.secrets, self._clock)
        except Exception:
            if webhook_response is None:
                raise
        return self._result_of(webhook_response, retry_after, allowed_origin)

    def _result_of(self, response: WebhookResponse, retry_after: bytes, allowed_origin: bytes) -> PostResult:
        match response.status:
            case status if 200 <= status < 300:
                return Delivered(status, allowed_origin.decode("ascii", "replace"))
            case 410:
                return Gone(response)
            case 429 | 503 as status:
                delay = parse_retry_after(retry_after.decode("ascii", "replace"), self._clock.time())
                return Retry(f"answered {status}", delay, response)
            case status if 300 <= status < 400:
                return Retry(f"answered {status}: redirects are not followed", None, response)
            case status:
                return Retry(f"answered {status}", None, response)

    def _stream(
        self, target: Target, request: PostRequest, probe: ConnectionProbe
    ) -> AbstractAsyncContextManager[httpcore.Response]:
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        fields = {"Host": target.authority, **request.headers, "Content-Length": str(len(request.body))}
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
        timeouts = {"connect": CONNECT_TIMEOUT, "read": self._timeout, "write": self._timeout}
        extensions = {"timeout": timeouts, "on_connect": probe.mark_new}
        http_request = httpcore.Request(
            request.method, url, headers=headers, content=request.body, extensions=extensions
        )
        return self._pools[target.scheme].stream(http_request)

    def _new_pool(self, ssl_context: ssl.SSLContext | None) -> ConnectionPool:
        only_allowed_networks = ssl_context is None
        backend = CheckedBackend(self._resolver, self._allow_networks, only_allowed_networks=only_allowed_networks)
        return ConnectionPool(backend, ssl_context, clock=self._clock)


class ConnectionProbe:
    """Marker for an attempt that opens a new connection."""

    def __init__(self) -> None:
        self.is_new = False

    def mark_new(self) -> None:
        """Record that a new connection is being opened."""
        self.is_new = True


def _server(target: Target) -> str:
    """Return the key of the target's circuit: host and port."""
    return f"{target.host}:{target.port}"
