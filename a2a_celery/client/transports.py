"""How an agent is reached: the SDK's client over the binding that the card and the caller agree on.

The SDK's client reads streams but drops the ids of their events. `EventIds` stands before its HTTP client and notes
them as they pass; the rest is the SDK's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import httpx
from a2a.client import Client, ClientCallInterceptor, ClientConfig, ClientFactory
from a2a.types import AgentCard
from a2a.utils.constants import TransportProtocol

from ..errors import ConfigError
from .failures import NoTransport

HTTP_BINDINGS = (TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value)
GRPC = TransportProtocol.GRPC.value

UNBOUNDED = (("grpc.max_receive_message_length", -1),)
"""A task may be as large as over HTTP; gRPC would take 4 MiB, and say of more that the agent is exhausted."""


class EventIds:
    """An HTTP client that knows the id of the last event that its stream has shown; for a single stream.

    `last` is None until there is one, and for good with servers that give none.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.last: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """What the client answers; of a stream, the ids are noted as its lines are read."""
        response = await self._http.send(request, **options)
        if options.get("stream"):
            lines = response.aiter_lines
            # a line is read when its frame is wanted: what is noted is never ahead of what was given out
            response.aiter_lines = lambda: self._noting(lines())  # type: ignore[method-assign]
        return response

    async def _noting(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        async for line in lines:
            if line.startswith("id:"):
                self.last = line.removeprefix("id:").strip() or None
            yield line


@dataclass(frozen=True, slots=True)
class Connection:
    """What one call is made with: `streams` says whether events come as they happen, `ids` knows theirs."""

    client: Client
    streams: bool
    ids: EventIds


class Transports:
    """Makes the SDK's clients for an agent at `url`.

    `prefer` names bindings ("JSONRPC", "HTTP+JSON", "GRPC"), the first that the card has is taken; empty: the card's
    order, of those that can be spoken here. gRPC is encrypted if `url` is.

    Raises:
        ConfigError: `prefer` names a binding that there is not, or gRPC without its extra.
    """

    def __init__(self, url: str, prefer: Sequence[str], interceptors: Sequence[ClientCallInterceptor]) -> None:
        known = (*HTTP_BINDINGS, GRPC)
        unknown = [name for name in prefer if name not in known]
        if unknown or isinstance(prefer, str):
            raise ConfigError(f"transports {prefer!r}: a list of {', '.join(known)}")
        has_grpc = find_spec("grpc") is not None
        if GRPC in prefer and not has_grpc:
            raise ConfigError("gRPC needs an extra: pip install 'a2a-celery[grpc]'")
        self._secure = urlsplit(url).scheme == "https"
        self._bindings = list(prefer) or [*HTTP_BINDINGS, *([GRPC] if has_grpc else [])]
        self._preferred = bool(prefer)
        self._interceptors = list(interceptors)
        self._channels: dict[str, Any] = {}

    def connect(self, card: AgentCard, http: httpx.AsyncClient, *, streaming: bool) -> Connection:
        """For one call to the agent with `card`; needs no closing: `http` and the channels are not its own.

        Raises:
            NoTransport: the card has no interface that can be spoken here.
        """
        ids = EventIds(http)
        config = ClientConfig(
            streaming=streaming,
            httpx_client=ids,  # type: ignore[arg-type]  # it has all of one
            grpc_channel_factory=self._channel,
            supported_protocol_bindings=self._bindings,
            use_client_preference=self._preferred,
        )
        try:
            client = ClientFactory(config).create(card, self._interceptors)
        except ValueError as e:
            offered = ", ".join(sorted({i.protocol_binding for i in card.supported_interfaces})) or "no interface"
            raise NoTransport(f"the card of {card.name!r} has {offered}; wanted: {', '.join(self._bindings)}") from e
        return Connection(client, streaming and card.capabilities.streaming, ids)

    async def close(self) -> None:
        """Closes the channels."""
        while self._channels:
            await self._channels.popitem()[1].close()

    def _channel(self, address: str) -> Any:
        import grpc.aio  # noqa: PLC0415 - an extra

        if address not in self._channels:
            self._channels[address] = (
                grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), options=UNBOUNDED)
                if self._secure
                else grpc.aio.insecure_channel(address, options=UNBOUNDED)
            )
        return self._channels[address]
