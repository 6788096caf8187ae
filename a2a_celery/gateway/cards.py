"""Agent cards as they are served: with interfaces that lead here.

A card that names interfaces is served as it is. One that names none gets the three bindings at `public_url`, or at the
address its request came to. Protocol 0.3 stands beside 1.0, for clients that look for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import lru_cache
from urllib.parse import urlsplit

from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCard, AgentInterface
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..agents import Agent
from ..config import Settings

_base_url: ContextVar[str] = ContextVar("base_url")


def card_routes(agent: Agent, settings: Settings, path: str) -> list[Route]:
    """The well-known card of `agent`, which lives under `path` ("" for the root)."""

    async def with_interfaces(card: AgentCard) -> AgentCard:
        return public_card(agent, settings, path, _base_url.get())

    def with_address(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def get_card(request: Request) -> Response:
            _base_url.set(settings.public_url or str(request.base_url))
            return await endpoint(request)

        return get_card

    routes = create_agent_card_routes(
        agent.card if agent.card.supported_interfaces else public_card(agent, settings, path, "http://localhost"),
        card_modifier=with_interfaces,
        cache_control="public, max-age=60",
    )
    return [Route(route.path, with_address(route.endpoint), methods=["GET"]) for route in routes]


@lru_cache(maxsize=256)  # a caller may send any Host header
def _interfaces(settings: Settings, name: str, path: str, base_url: str) -> tuple[AgentInterface, ...]:
    url = base_url.rstrip("/") + path
    found = []
    for version in ("1.0", "0.3"):
        found += [
            AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version=version),
            AgentInterface(url=url, protocol_binding="HTTP+JSON", protocol_version=version),
        ]
    if settings.grpc_port is not None:
        address = settings.grpc_public_address or f"{urlsplit(base_url).hostname}:{settings.grpc_port}"
        # one port serves all agents: the tenant says which, "" is the first
        tenant = name if path else ""
        found.insert(2, AgentInterface(url=address, protocol_binding="GRPC", protocol_version="1.0", tenant=tenant))
    return tuple(found)


def public_card(agent: Agent, settings: Settings, path: str, base_url: str) -> AgentCard:
    """The card that a client at `base_url` gets."""
    if agent.card.supported_interfaces:
        return agent.card
    card = AgentCard()
    card.CopyFrom(agent.card)
    card.supported_interfaces.extend(_interfaces(settings, agent.name, path, base_url))
    return card
