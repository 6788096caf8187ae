"""Transports to an agent: the SDK's client over a binding that both the card and the caller support, with credentials
and a size limit for responses.

The SDK's client discards the event ids of streams and rejects timestamps without a zone. `EventIdRecorder` wraps the
client's HTTP client, records the ids and adds the zones.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import isawaitable
from io import IncrementalNewlineDecoder
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx
from a2a.client import Client, ClientCallContext, ClientCallInterceptor, ClientConfig, ClientFactory
from a2a.client.interceptors import AfterArgs, BeforeArgs
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types import AgentCard, AgentInterface
from a2a.utils.constants import PROTOCOL_VERSION_0_3, TransportProtocol
from packaging.version import InvalidVersion, Version

from ...caller import API_KEY_HEADER
from ...current_run import CURRENT_RUN
from ...errors import ConfigError
from ...telemetry.tracing import trace_to_keep
from ..errors import InvalidResponse, NoTransport
from ..event_parser import repaired_text

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers, or a function that returns the headers of the next request, for example with a fresh token."""

TRACEPARENT_HEADER = "traceparent"


class Credentials:
    """Headers of every request, with a bearer token and an API key if they are configured.

    Args:
        headers: Headers, or a function or coroutine function that returns the headers of the next request.
        bearer: Bearer token, or None.
        api_key: API key, or None. The key is sent in the header that the card's security scheme specifies, or in
            `API_KEY_HEADER` if the card has no such scheme.

    Raises:
        ConfigError: The token or the key is empty, or a header cannot contain it.
    """

    def __init__(
        self, headers: HeaderSource | None = None, *, bearer: str | None = None, api_key: str | None = None
    ) -> None:
        if bearer == "" or api_key == "":
            raise ConfigError("an empty bearer token or API key: pass None instead")
        for name, secret in (("bearer", bearer), ("api_key", api_key)):
            if secret is not None and not _is_header_value(secret):
                raise ConfigError(f"{name}: {_UNFIT_FOR_HEADER}")
        self._source = {} if headers is None else headers
        self._bearer = bearer
        self._api_key = api_key

    async def headers(self, card: AgentCard | None = None) -> dict[str, str]:
        """Return the headers of the next request.

        Args:
            card: The agent's card, or None for the request that fetches the card.

        Raises:
            ConfigError: A configured header is invalid, or the card requires the API key in the query or in a cookie,
                which is not supported.
        """
        source = self._source() if callable(self._source) else self._source
        headers = _checked_headers(await source if isawaitable(source) else source)
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        if self._api_key is not None:
            headers[_api_key_header(card)] = self._api_key
        return headers


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
_UNFIT_FOR_HEADER = (
    "must consist of printable ASCII characters without whitespace at its ends; a token from a file may end with a "
    "newline"
)


def _is_header_value(value: object) -> bool:
    return isinstance(value, str) and _HEADER_VALUE.fullmatch(value) is not None


def _checked_headers(headers: object) -> dict[str, str]:
    """Return `headers` as a dict. The text of an error does not contain the values, which may be secrets."""
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers: the function must return a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"header {name!r}: the name is invalid")
        if not _is_header_value(value):
            raise ConfigError(f"header {name!r}: the value {_UNFIT_FOR_HEADER}")
    return dict(headers)


class CredentialsInterceptor(ClientCallInterceptor):
    """Interceptor that adds credentials to every call that the SDK's client makes."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def before(self, args: BeforeArgs) -> None:
        """Add the headers. Headers that the call already has take precedence."""
        headers = await self._credentials.headers(args.agent_card)
        context = args.context or ClientCallContext()
        context.service_parameters = {**headers, **(context.service_parameters or {})}
        args.context = context

    async def after(self, args: AfterArgs) -> None:
        """Leave the response unchanged."""


class TraceInterceptor(ClientCallInterceptor):
    """Interceptor that adds the trace headers of the current agent run, if there is one."""

    async def before(self, args: BeforeArgs) -> None:
        """Add the headers. Headers that the call already has take precedence."""
        if headers := trace_of_current_run():
            context = args.context or ClientCallContext()
            parameters = context.service_parameters or {}
            if TRACEPARENT_HEADER not in {name.lower() for name in parameters}:
                context.service_parameters = {**headers, **parameters}
                args.context = context

    async def after(self, args: AfterArgs) -> None:
        """Leave the response unchanged."""


def trace_of_current_run() -> dict[str, str]:
    """Return the trace headers of the current agent run, or an empty dict outside a run."""
    run = CURRENT_RUN.get()
    return {} if run is None else trace_to_keep(run.trace())


def _api_key_header(card: AgentCard | None) -> str:
    schemes = (
        [] if card is None else [s for s in card.security_schemes.values() if s.HasField("api_key_security_scheme")]
    )
    if not schemes:
        return API_KEY_HEADER
    for scheme in schemes:
        if scheme.api_key_security_scheme.location.lower() == "header":
            name: str = scheme.api_key_security_scheme.name
            return name
    raise ConfigError("the agent requires its API key in the query or a cookie, which is not supported: use a header")


MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of a response, or of one event of a stream, in bytes after decompression."""

MAX_CARD_BYTES = 1024 * 1024


class ResponseLimit:
    """Limit on the bytes of a response, counted from the start of the response or from the last `reset`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read = 0

    def reset(self) -> None:
        """Reset the count to zero."""
        self._read = 0

    def watch(self, response: httpx.Response) -> None:
        """Make reads of `response` raise InvalidResponse when the number of bytes exceeds the limit."""
        chunks = response.aiter_bytes

        async def limited_chunks(chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            async with aclosing(chunks(chunk_size)) as response_chunks:  # type: ignore[type-var]
                async for chunk in response_chunks:
                    self._read += len(chunk)
                    if self._read > self._most:
                        raise InvalidResponse(f"{response.request.url} sent more than {self._most} bytes")
                    yield chunk

        response.aiter_bytes = limited_chunks  # type: ignore[method-assign]

    async def read(self, response: httpx.Response) -> bytes:
        """Read `response` to its end and close it.

        Raises:
            InvalidResponse: The response exceeds the limit.
        """
        self.watch(response)
        try:
            return await response.aread()
        finally:
            await response.aclose()


HTTP_BINDINGS = (TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value)
GRPC = TransportProtocol.GRPC.value

ANY_HOST = "*"
"""Value of `hosts` that permits the interfaces of a card to be at any host."""

_HOST_AND_PORT = re.compile(r"(?:dns:///)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):\d+", re.ASCII)

MAX_SHOWN_INTERFACES = 5
"""Maximum number of a card's interfaces in the text of an error."""

MAX_SHOWN_LENGTH = 100
"""Maximum number of characters of a value in a card in the text of an error."""

GRPC_PORTS = {"https": 443, "http": 80}
"""Default ports of gRPC interfaces whose address in the card is a URL."""

OF_CONTENT = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of a response that describe its content as it was sent."""

GRPC_KEEPALIVE = (("grpc.keepalive_time_ms", 330_000),)
"""Channel options that detect a dead connection under an open call. Servers close a connection whose client sends pings
without data more often than every 5 minutes."""


class EventIdRecorder:
    """HTTP client that records the id of the last event of a stream.

    If a response, or one event of a stream, is larger than `max_response_bytes`, reading it raises InvalidResponse.

    Attributes:
        last: Id of the last event, or None before the first event or if the server sends no ids.
    """

    def __init__(self, http: httpx.AsyncClient, max_response_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._http = http
        self._bound = ResponseLimit(max_response_bytes)
        self.last: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request. While a stream is read, event ids are recorded, and status timestamps without a zone are read
        as UTC.
        """
        response = await self._http.send(request, **options | {"stream": True})
        self._bound.reset()
        if options.get("stream") and "text/event-stream" in response.headers.get("content-type", ""):
            self._bound.watch(response)
            # A line is read only when its frame is needed, so the recorded id is never newer than the yielded events.
            response.aiter_lines = lambda: self._record_ids(_lines_of(response))  # type: ignore[method-assign]
            return response
        await self._bound.read(response)
        if (text := repaired_text(response.text)) == response.text:
            return response
        headers = {name: value for name, value in response.headers.items() if name not in OF_CONTENT}
        return httpx.Response(response.status_code, headers=headers, content=text.encode(), request=request)

    async def _record_ids(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        async for line in lines:
            if not line.strip():
                self._bound.reset()
            elif line.startswith("id:"):
                self.last = line.removeprefix("id:").strip() or None
            yield f"data:{repaired_text(line[5:])}" if line.startswith("data:") else line


async def _lines_of(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream of events. Unlike `aiter_lines` of httpx, lines end only at CR and LF, because a JSON
    string may contain the line separators of Unicode."""
    decoder, pieces = IncrementalNewlineDecoder(None, translate=True), list[str]()
    async for text in response.aiter_text():
        end_of_line, *next_pieces = decoder.decode(text).split("\n")
        pieces.append(end_of_line)
        for piece in next_pieces:
            yield "".join(pieces)
            pieces = [piece]
    if decoder.decode("", final=True):
        yield "".join(pieces)


@dataclass(frozen=True, slots=True)
class Connection:
    """SDK client for one call, with the recorder of event ids.

    Attributes:
        client: The SDK's client.
        streams: True if the call may stream, and the agent supports streaming.
        ids: Recorder of the event ids of the stream.
    """

    client: Client
    streams: bool
    ids: EventIdRecorder


class Transports:
    """Factory of the SDK's clients for one agent.

    Args:
        url: Base address of the agent. If `url` is ``https://``, interfaces of the card at ``http://`` addresses are
            ignored, because credentials would be sent in clear text. Interfaces of HTTP bindings whose address is not a
            valid URL are ignored, too. A gRPC interface whose address has neither of these schemes is encrypted if and
            only if `url` is ``https://``.
        prefer: Bindings in order of preference: "JSONRPC", "HTTP+JSON", "GRPC". If empty or None, the order of
            the card applies.
        interceptors: Interceptors of the SDK's client.
        max_response_bytes: Maximum size of a response, or of one event of a stream, in bytes after decompression.
        timeout: Seconds after which a gRPC call fails, or None for no limit. Streams and messages that wait for the end
            of the task have no limit.
        hosts: Other hosts than that of `url` whose interfaces are used, or `ANY_HOST`, or None for no other host.
            Interfaces of the card at other hosts are ignored, because the card of an untrusted agent could name an
            internal address.
        tenant: Tenant of every request, or None for the tenants in the card. With a tenant, interfaces that cannot
            carry it are ignored: those of protocol 0.3, and HTTP+JSON if the tenant does not fit into a path.

    Raises:
        ConfigError: `prefer` is not a list of known bindings, or contains "GRPC" although gRPC is not installed.
            `hosts` is a text other than `ANY_HOST`, or `tenant` is invalid.
    """

    def __init__(
        self,
        url: str,
        prefer: Sequence[str] | None,
        interceptors: Sequence[ClientCallInterceptor],
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        timeout: float | None = None,
        hosts: Collection[str] | None = None,
        tenant: str | None = None,
    ) -> None:
        if error := tenant_error(tenant):
            raise ConfigError(error)
        if isinstance(hosts, str) and hosts != ANY_HOST:
            raise ConfigError(f"hosts = {hosts!r}: a list of host names, or {ANY_HOST!r} for all hosts")
        prefer, hosts = prefer or (), hosts or ()
        bindings = (*HTTP_BINDINGS, GRPC)
        unknown = [name for name in prefer if name not in bindings]
        if unknown or isinstance(prefer, str):
            raise ConfigError(f"transports {prefer!r}: must be a list of {', '.join(bindings)}")
        has_grpc = find_spec("grpc") is not None
        if GRPC in prefer and not has_grpc:
            raise ConfigError("gRPC needs an extra: pip install 'a2a-celery[grpc]'")
        self._secure = urlsplit(url).scheme == "https"
        self._hosts = None if ANY_HOST in hosts else {_plain_host(host) for host in (host_of(url), *hosts)}
        self._bindings = list(prefer) or [*HTTP_BINDINGS, *([GRPC] if has_grpc else [])]
        self._preferred = bool(prefer)
        self._interceptors = list(interceptors)
        self._max_answer_bytes = max_response_bytes
        self._timeout = timeout
        self._tenant = tenant or ""
        self._channels: dict[str, Any] = {}

    def connect(self, card: AgentCard, http: httpx.AsyncClient, *, streaming: bool) -> Connection:
        """Return the connection of one call. The connection need not be closed, because the HTTP client and the
        channels are shared.

        Raises:
            NoTransport: The card has no interface that this client supports.
        """
        ids = EventIdRecorder(http, self._max_answer_bytes)
        usable_card = self.usable_card(card)
        if not usable_card.supported_interfaces:
            raise NoTransport(self._unusable_text(card))
        config = ClientConfig(
            streaming=streaming,
            httpx_client=ids,  # type: ignore[arg-type]  # it forwards the attributes of an AsyncClient
            grpc_channel_factory=self._channel,
            supported_protocol_bindings=self._bindings,
            use_client_preference=self._preferred,
        )
        client = ClientFactory(config).create(usable_card, self._interceptors)
        return Connection(client, streaming and card.capabilities.streaming, ids)

    async def close(self) -> None:
        """Close the gRPC channels."""
        while self._channels:
            await self._channels.popitem()[1].close()

    def usable_card(self, card: AgentCard) -> AgentCard:
        """Return `card` without the interfaces that the client does not use. The SDK's client sends the tenant of the
        interface that it chooses with every request."""
        usable_interfaces = [interface for interface in card.supported_interfaces if not self._obstacle(interface)]
        if len(usable_interfaces) == len(card.supported_interfaces) and not self._tenant:
            return card
        usable_card = AgentCard()
        usable_card.CopyFrom(card)
        del usable_card.supported_interfaces[:]
        usable_card.supported_interfaces.extend(usable_interfaces)
        if self._tenant:
            # Only some interfaces have a tenant: at their addresses, which several agents share, it names the agent.
            is_shared = any(not interface.tenant for interface in card.supported_interfaces)
            for interface in usable_card.supported_interfaces:
                prefix = f"{interface.tenant}/" if interface.tenant and is_shared else ""
                interface.tenant = f"{prefix}{self._tenant}"
        return usable_card

    def _unusable_text(self, card: AgentCard) -> str:
        """Return the text of a `NoTransport` for `card`, with the obstacle of each interface."""
        interfaces = card.supported_interfaces
        if not interfaces:
            return f"the card of {card.name!r} has no interface"
        obstacles = [
            f"{interface.protocol_binding[:MAX_SHOWN_LENGTH]!r} at {interface.url[:MAX_SHOWN_LENGTH]!r}: "
            f"{self._obstacle(interface)}"
            for interface in interfaces[:MAX_SHOWN_INTERFACES]
        ]
        if len(interfaces) > MAX_SHOWN_INTERFACES:
            obstacles.append(f"{len(interfaces) - MAX_SHOWN_INTERFACES} more")
        return f"no interface in the card of {card.name!r} is usable: {'; '.join(obstacles)}"

    def _obstacle(self, interface: AgentInterface) -> str:
        """Return the reason for which the client does not use `interface`, or "" if the client uses it."""
        binding, url = interface.protocol_binding, interface.url
        if binding == GRPC and not self._preferred and GRPC not in self._bindings:
            return "gRPC needs an extra: pip install 'a2a-celery[grpc]'"
        if binding not in self._bindings:
            return f"the binding is not one of {', '.join(self._bindings)}"
        if not _is_supported_version(interface.protocol_version):
            return f"the protocol version {interface.protocol_version[:MAX_SHOWN_LENGTH]!r} is not supported"
        if self._tenant and is_legacy_version(interface.protocol_version):
            return f"protocol 0.3 cannot carry the tenant {self._tenant!r}"
        if self._tenant and binding == TransportProtocol.HTTP_JSON and not _fits_path(self._tenant):
            return f"a path cannot carry the tenant {self._tenant!r}"
        if not (is_http_url(url) if binding in HTTP_BINDINGS else _is_grpc_address(url)):
            return "the address is not a valid URL"
        if self._secure and url.lower().startswith("http://"):
            return "the address is http://, but the agent's is https://"
        if self._hosts is not None and _plain_host(host_of(url)) not in self._hosts:
            return f"the host is not {' or '.join(sorted(self._hosts))} (see the argument hosts)"
        return ""

    def _channel(self, url: str) -> Any:
        import grpc.aio  # noqa: PLC0415 - an extra

        if url not in self._channels:
            address, is_secure = grpc_address(url, is_secure=self._secure)
            options = (("grpc.max_receive_message_length", self._max_answer_bytes), *GRPC_KEEPALIVE)  # default: 4 MiB
            interceptors = [_timeout_interceptor(self._timeout)]
            self._channels[url] = (
                grpc.aio.secure_channel(
                    address, grpc.ssl_channel_credentials(), options=options, interceptors=interceptors
                )
                if is_secure
                else grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
            )
        return self._channels[url]


def grpc_address(url: str, *, is_secure: bool) -> tuple[str, bool]:
    """Return the host and port of a gRPC interface, and True if the interface is encrypted.

    Args:
        url: Address in the card: a URL, or a name that the gRPC library resolves, such as host:port.
        is_secure: True if an address that is not a URL is encrypted.

    Raises:
        ValueError: The port is invalid.
    """
    parts = urlsplit(url)
    if parts.scheme not in GRPC_PORTS or not parts.netloc:
        return url, is_secure
    host = parts.netloc.rpartition("@")[2]
    return (host if parts.port is not None else f"{host}:{GRPC_PORTS[parts.scheme]}"), parts.scheme == "https"


def _is_grpc_address(url: str) -> bool:
    try:
        grpc_address(url, is_secure=False)
    except ValueError:
        return False
    return True


def _is_supported_version(version: str) -> bool:
    """Return True for the versions that the SDK's client supports: 0.3 and later, and "" for an unknown version."""
    try:
        return not version or Version(version) >= Version(PROTOCOL_VERSION_0_3)
    except InvalidVersion:
        return False


def host_of(url: str) -> str:
    """Return the host of an HTTP URL or of a gRPC address ``host:port``, or "" for any other address, such as one that
    names a name server."""
    match = _HOST_AND_PORT.fullmatch(url)
    if match is not None:
        return match[1]
    try:
        parts = httpx.URL(url)  # the parser that also decides where a request is sent
    except httpx.InvalidURL:
        return ""
    return parts.raw_host.decode() if parts.scheme in GRPC_PORTS else ""


def _plain_host(host: str) -> str:
    """Return `host` in lower case without brackets and a final dot. All loopback addresses have the same result."""
    host = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return "localhost" if ip_address(host).is_loopback else host
    except ValueError:
        return host


def is_http_url(url: str) -> bool:
    """Return True if `url` is an HTTP URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def url_error(url: object) -> str:
    """Describe the error in an agent's URL, without the URL's password. Return "" if the URL is valid."""
    if not isinstance(url, str):
        return f"an agent's URL must be a string, not {type(url).__name__}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url!r} is not a URL"
    if parts.username is not None or parts.password is not None:
        return f"the URL for {parts.hostname} has a password: pass the credentials in headers instead"
    if not is_http_url(url) or parts.query or parts.fragment:
        return f"{url!r}: an agent's URL must begin with http:// or https:// and name a host, and must have no query"
    return ""


MAX_TENANT_LENGTH = 256


def tenant_error(tenant: object) -> str:
    """Describe the error in a tenant. Return "" if the tenant is valid or None."""
    if tenant is None:
        return ""
    if not isinstance(tenant, str):
        return f"a tenant must be a string, not {type(tenant).__name__}"
    if len(tenant) > MAX_TENANT_LENGTH or not tenant.isprintable():
        return f"tenant {tenant[:MAX_TENANT_LENGTH]!r}: at most {MAX_TENANT_LENGTH} printable characters"
    return ""


def _fits_path(tenant: str) -> bool:
    """Return True if the SDK, which does not quote the tenant, sends it unchanged in the path of a URL."""
    return not set(tenant) & set("?#%\\") and not {"", ".", ".."} & set(tenant.split("/"))


def _timeout_interceptor(timeout: float | None) -> Any:
    """Return a gRPC interceptor that limits calls without a stream to `timeout` seconds, unless the call already has a
    limit or waits for the end of a task. The SDK's transport for protocol 0.3 sets no limits."""
    import grpc.aio  # noqa: PLC0415 - an extra

    class TimeoutInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
        async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            details = client_call_details
            if details.timeout is None and not _waits_for_task(request):
                details = details._replace(timeout=timeout)
            return await continuation(details, request)

    return TimeoutInterceptor()


def _waits_for_task(request: Any) -> bool:
    """Return True for a SendMessage request of protocol 1.0 or 0.3 whose response is the task after the turn."""
    configuration = getattr(request, "configuration", None)
    if configuration is None:
        return False
    return bool(getattr(configuration, "blocking", False) or not getattr(configuration, "return_immediately", True))
