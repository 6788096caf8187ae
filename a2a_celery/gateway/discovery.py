"""Routes at the gateway's root for clients that know only the gateway: the catalog of its agents, and the OpenAPI
document of the HTTP+JSON binding.

The documents contain the names of all agents, so a gateway with authentication requires credentials for them.

Source: AI Catalog 0.9, https://ai-catalog.io/spec; OpenAPI 3.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..agents import Agent
from ..settings import Settings
from .auth.schemes import Scheme
from .cards import BASE_URL, base_url_of, cached_card, with_base_url
from .openapi.document import CATALOG_MEDIA_TYPE, CATALOG_PATH, openapi_document
from .protocol_errors import BurstDelay

CATALOG_PATHS = (CATALOG_PATH, "/.well-known/ai-catalog.json")
CATALOG_VERSION = "0.9"
CARD_MEDIA_TYPE = "application/a2a-agent-card+json"

OPENAPI_PATH = "/openapi.json"
OPENAPI_MEDIA_TYPE = "application/vnd.oai.openapi+json"

_HOST = re.compile(r"\w+://(\[[^\]/]*\]|[^:/]*)")


def discovery_routes(
    agents: Mapping[str, Agent], settings: Settings, schemes: Sequence[Scheme], delay: BurstDelay
) -> list[Route]:
    """Return the routes of the catalog and of the OpenAPI document.

    Args:
        agents: Agents with the cards that the gateway serves, by name.
        settings: Settings of the deployment.
        schemes: Authentication schemes of the gateway.
        delay: Delay of documents if there are many requests.
    """
    document = json.dumps(openapi_document(BASE_URL, tuple(agents), schemes), separators=(",", ":")).encode()

    def encoded_catalog(request: Request) -> bytes:
        return json.dumps(catalog(base_url_of(request, settings), agents)).encode()

    def encoded_document(request: Request) -> bytes:
        return with_base_url(document, request, settings)

    routes = [(path, CATALOG_MEDIA_TYPE, encoded_catalog) for path in CATALOG_PATHS]
    routes.append((OPENAPI_PATH, OPENAPI_MEDIA_TYPE, encoded_document))
    return [_route(*route, settings, delay, is_public=not schemes) for route in routes]


def catalog(base_url: str, agents: Mapping[str, Agent]) -> dict[str, Any]:
    """Return the AI Catalog of a gateway that clients reach at `base_url`, with the address of each agent's card."""
    host = _HOST.match(base_url)
    publisher = quote(host[1] if host else "", safe=".-")
    entries = [
        {
            "identifier": f"urn:air:{publisher}:{quote(name, safe='')}:a2a",
            "displayName": agent.card.name,
            "description": agent.card.description,
            "version": agent.card.version,
            "type": CARD_MEDIA_TYPE,
            "url": f"{base_url}/agents/{name}{AGENT_CARD_WELL_KNOWN_PATH}",
        }
        for name, agent in agents.items()
    ]
    return {"specVersion": CATALOG_VERSION, "entries": entries}


def _route(
    path: str,
    media_type: str,
    encode: Callable[[Request], bytes],
    settings: Settings,
    delay: BurstDelay,
    *,
    is_public: bool,
) -> Route:
    async def get_document(request: Request) -> Response:
        await delay.wait()
        response = cached_card(Response(encode(request), media_type=media_type), request)
        if settings.public_url and is_public:  # without public_url, the addresses follow the header Host
            response.headers["Cache-Control"] = response.headers["Cache-Control"].replace("private", "public")
        return response

    return Route(path, get_document, methods=["GET"])
