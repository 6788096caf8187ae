"""Routes of the agent cards, and of the public keys with which receivers verify posts.

A request for protocol 1.0 gets a card with the members of 1.0 only. A request for 0.3 gets a card that also has the
members of 0.3. A request without a version is a request for 0.3, and the clients of 0.3 and of 1.0 fetch cards without
a version, so this card suits both.

A card that declares interfaces is served with these interfaces. A card without interfaces gets JSON-RPC and HTTP+JSON
at `public_url` or at the address of the request. Interfaces of protocol 1.0 precede those of 0.3.

A card gets a gRPC interface only if `grpc_public_address` is set, because no default address suits every client. gRPC
libraries (Python, JavaScript, Go) accept ``host:port`` but not a URL. google-adk's client rejects a card if any
interface has a different origin from the card.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cache, lru_cache
from hashlib import sha256
from uuid import uuid4

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import AgentCard, AgentInterface
from a2a.utils.constants import (
    AGENT_CARD_WELL_KNOWN_PATH,
    PROTOCOL_VERSION_0_3,
    PROTOCOL_VERSION_1_0,
    VERSION_HEADER,
)
from a2a.utils.proto_utils import warn_on_missing_required_fields
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..agents import Agent
from ..clock import SYSTEM_CLOCK
from ..crypto.webhook_keys import JWKS_PATH, jwk_set, public_key_bytes
from ..errors import ConfigError
from ..push import format_public_key, parse_private_key
from ..settings import Settings
from .call import Call, requested_version, served_as
from .metrics import Metrics
from .protocol_errors import BurstDelay

BASE_URL = f"http://{uuid4().hex}"
"""Placeholder of the base URL in documents that are encoded once; see `with_base_url`."""


def base_url_of(request: Request, settings: Settings) -> str:
    """Return the base URL of the gateway for the client, without a trailing slash."""
    return (settings.public_url or str(request.base_url)).rstrip("/")


def with_base_url(document: bytes, request: Request, settings: Settings) -> bytes:
    """Return the encoded JSON `document` with the base URL of the gateway instead of `BASE_URL`."""
    base_url = json.dumps(base_url_of(request, settings), ensure_ascii=False)[1:-1]
    return document.replace(BASE_URL.encode(), base_url.encode())


def card_routes(agent: Agent, settings: Settings, path: str, metrics: Metrics, delay: BurstDelay) -> list[Route]:
    """Return the route of the well-known card of `agent`. The agent's paths start with `path` ("" for the root).

    The card is public, so each form of the card is encoded once, and `delay` is applied. Only the base URL depends on
    the request.
    """
    warn_on_missing_required_fields(public_card(agent, settings, path, "http://localhost"), f"agent {agent.name!r}:")
    # A card does not change while the process runs. HTTP dates have whole seconds.
    since = SYSTEM_CLOCK.now().replace(microsecond=0)

    # A shared cache could serve a card with the address that another client has sent in Host.
    scope = "public" if settings.public_url else "private"

    @cache
    def encoded_card(is_legacy: bool) -> bytes:
        card = public_card(agent, settings, path, BASE_URL)
        return bytes(JSONResponse(agent_card_to_dict(card) if is_legacy else MessageToDict(card)).body)

    async def get_card(request: Request) -> Response:
        metrics.count_request(agent.name, "GetAgentCard", "ok")
        await delay.wait()
        is_legacy = served_as(requested_version(request)) == PROTOCOL_VERSION_0_3
        body = with_base_url(encoded_card(is_legacy), request, settings)
        response = cached_card(Response(body, media_type="application/json"), request)
        response.headers.update({"Cache-Control": f"{scope}, max-age=60", "Vary": VERSION_HEADER})
        return _date_response(response, request, since)

    return [Route(AGENT_CARD_WELL_KNOWN_PATH, get_card, methods=["GET"])]


def _date_response(response: Response, request: Request, since: datetime) -> Response:
    """Return `response` with Last-Modified, or 304 if the client's copy is current.

    Source: RFC 9110, section 13.1.3 (If-None-Match takes precedence).
    """
    response.headers["Last-Modified"] = format_datetime(since, usegmt=True)
    copy_date = request.headers.get("if-modified-since")
    if copy_date is None or "if-none-match" in request.headers or response.status_code != 200:
        return response
    try:
        copy_time = parsedate_to_datetime(copy_date)
        is_current = (copy_time if copy_time.tzinfo else copy_time.replace(tzinfo=UTC)) >= since
    except (ValueError, OverflowError):
        return response
    if not is_current:
        return response
    headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return Response(status_code=304, headers=headers)


def has_current_copy(request: Request, tag: str) -> bool:
    """Return True if the header If-None-Match of `request` contains the ETag `tag`, or is ``*``. Tags are compared
    weakly.

    Source: RFC 9110, sections 8.8.3.2 and 13.1.2.
    """
    tags = [other.strip().removeprefix("W/") for other in request.headers.get("if-none-match", "").split(",")]
    return tag.removeprefix("W/") in tags or "*" in tags


def cached_card(response: Response, request: Request) -> Response:
    """Return `response`, a card, with caching headers, or 304 if the client's copy is current.

    Source: A2A specification 8.6.1.
    """
    tag = f'W/"{sha256(bytes(response.body)).hexdigest()}"'
    caching = {"Cache-Control": "private, max-age=60", "ETag": tag}
    if has_current_copy(request, tag):
        return Response(status_code=304, headers=caching)
    response.headers.update(caching)
    return response


def extended_card(agent: Agent, settings: Settings, call: Call) -> AgentCard | None:
    """Return the agent's extended card with the interfaces of the public card, or None if there is no extended card.

    Source: A2A specification 3.1.11.
    """
    if agent.extended_card is None:
        return None
    return _served_extended_card(
        agent.extended_card, agent, settings, call.path, settings.public_url or call.base_url()
    )


def _served_extended_card(
    extended_card: AgentCard, agent: Agent, settings: Settings, path: str, base_url: str
) -> AgentCard:
    card = AgentCard()
    card.CopyFrom(extended_card)
    card.capabilities.push_notifications = card_of(agent, settings).capabilities.push_notifications
    return _with_interfaces(card, agent, settings, path, base_url)


def card_of(agent: Agent, settings: Settings) -> AgentCard:
    """Return the card of `agent`. If the card does not set `push_notifications`, the result declares whether this
    deployment supports push notifications.

    Raises:
        ConfigError: The card declares push notifications, but `secret_key` is not set.
    """
    card = agent.card
    if card.capabilities.push_notifications and not settings.secret_key:
        raise ConfigError(
            f"agent {agent.name!r}: its card declares push notifications, whose secrets are stored encrypted: "
            "set A2A_SECRET_KEY, or capabilities.push_notifications to False"
        )
    if card.capabilities.HasField("push_notifications"):
        return card
    agent_card = AgentCard()
    agent_card.CopyFrom(card)
    agent_card.capabilities.push_notifications = bool(settings.secret_key)
    return agent_card


def public_card(agent: Agent, settings: Settings, path: str, base_url: str) -> AgentCard:
    """Return the public card of `agent`. A card without interfaces gets the interfaces of this deployment.

    Args:
        agent: Agent of the card.
        settings: Settings of the deployment.
        path: Path of the agent under `base_url`.
        base_url: Base URL that the client uses.
    """
    return _with_interfaces(card_of(agent, settings), agent, settings, path, base_url)


def check_signed_cards(agent: Agent, secured_agent: Agent, settings: Settings) -> None:
    """Check that the gateway does not change the signed cards of `agent`, because clients would refuse their
    signatures.

    Args:
        agent: Agent with the cards that its owner has signed.
        secured_agent: The same agent with the security schemes of this gateway on its cards.
        settings: Settings of the deployment.

    Raises:
        ConfigError: The gateway would set fields of a signed card. The message names the fields.
    """
    base_url = "http://localhost"  # only the presence of interfaces matters
    _require_unchanged(
        agent.card, public_card(secured_agent, settings, "", base_url), f"agent {agent.name!r}: its card"
    )
    if agent.extended_card is not None and secured_agent.extended_card is not None:
        served = _served_extended_card(secured_agent.extended_card, secured_agent, settings, "", base_url)
        _require_unchanged(agent.extended_card, served, f"agent {agent.name!r}: its extended card")


def _require_unchanged(card: AgentCard, served: AgentCard, about: str) -> None:
    names = [name for name in AgentCard.DESCRIPTOR.fields_by_name if getattr(card, name) != getattr(served, name)]
    if not card.signatures or not names:
        return
    capability = f"capabilities.push_notifications = {served.capabilities.push_notifications}"
    fields = ", ".join(capability if name == "capabilities" else name for name in names)
    raise ConfigError(
        f"{about} is signed, and clients would refuse the signatures, because this gateway would set {fields}: set "
        "these fields before you sign the card"
    )


def _with_interfaces(card: AgentCard, agent: Agent, settings: Settings, path: str, base_url: str) -> AgentCard:
    if card.supported_interfaces:
        return card
    card_copy = AgentCard()
    card_copy.CopyFrom(card)
    card_copy.supported_interfaces.extend(_interfaces(settings, agent.name, path, base_url))
    return card_copy


@lru_cache(maxsize=256)  # callers may send any Host header
def _interfaces(settings: Settings, name: str, path: str, base_url: str) -> tuple[AgentInterface, ...]:
    interfaces = []
    url, address = base_url.rstrip("/") + path, settings.grpc_public_address
    for version in (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3):
        if base_url:
            interfaces += [
                AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version=version),
                AgentInterface(url=url, protocol_binding="HTTP+JSON", protocol_version=version),
            ]
        # One port serves all agents: the tenant selects the agent, and "" selects the first agent. Requests of 0.3
        # have no tenant.
        tenant = name if path else ""
        if settings.grpc_port is not None and address and (version == PROTOCOL_VERSION_1_0 or not tenant):
            interfaces.append(
                AgentInterface(url=address, protocol_binding="GRPC", protocol_version=version, tenant=tenant)
            )
    return tuple(interfaces)


MAX_AGE = 300
"""Seconds for which receivers may cache the keys."""


def published_keys(settings: Settings) -> tuple[str, ...]:
    """Return the public keys (``whpk_…``) of the configured private keys, without duplicates."""
    return tuple(dict.fromkeys(format_public_key(parse_private_key(key)) for key in settings.webhook_private_keys))


def key_routes(settings: Settings) -> list[Route]:
    """Return the route of the JWK Set, or no route if there is no key."""
    keys = published_keys(settings)
    if not keys:
        return []
    document = jwk_set(map(public_key_bytes, keys))
    headers = {"Cache-Control": f"public, max-age={MAX_AGE}"}

    async def get_keys(_: Request) -> Response:
        return JSONResponse(document, headers=headers, media_type="application/jwk-set+json")

    return [Route(JWKS_PATH, get_keys, methods=["GET"])]


def signatures_line(settings: Settings) -> str:
    """Return a description of the signatures of posts and of the published keys, or "" if nothing is posted."""
    keys = published_keys(settings)
    if not settings.secret_key and not keys:
        return ""
    if not keys:
        return "HMAC-SHA256 (v1)"
    first, *others = keys
    return f"HMAC-SHA256 (v1) and Ed25519 (v1a) with {first}" + "".join(f"; published too: {key}" for key in others)
