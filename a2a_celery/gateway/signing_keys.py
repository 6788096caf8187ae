"""Public keys of the Ed25519 signatures of webhooks, as gateways publish them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..crypto.webhook_keys import JWKS_PATH, jwk_set, public_key_bytes
from ..push import format_public_key, parse_private_key
from ..settings import Settings

MAX_AGE = 300
"""Seconds for which receivers may cache the keys."""


def published_keys(settings: Settings) -> tuple[str, ...]:
    """Return the public keys, ``whpk_…``: those of the private keys first, each once."""
    own = (format_public_key(parse_private_key(key)) for key in settings.webhook_private_keys)
    return tuple(dict.fromkeys((*own, *settings.webhook_public_keys)))


def key_routes(settings: Settings) -> list[Route]:
    """Return the route of the JWK Set; none without a key."""
    keys = published_keys(settings)
    if not keys:
        return []
    document = jwk_set(map(public_key_bytes, keys))
    headers = {"Cache-Control": f"public, max-age={MAX_AGE}"}

    async def get_keys(_: Request) -> Response:
        return JSONResponse(document, headers=headers, media_type="application/jwk-set+json")

    return [Route(JWKS_PATH, get_keys, methods=["GET"])]


def signatures_line(settings: Settings) -> str:
    """Return how webhooks are signed and which keys are published, or "" without webhooks."""
    keys = published_keys(settings)
    if not settings.secret_key and not keys:
        return ""
    if not keys:
        return "HMAC-SHA256 (v1)"
    if not settings.webhook_private_keys:
        return f"HMAC-SHA256 (v1); Ed25519 keys published for watchers: {', '.join(keys)}"
    first, *others = keys
    return f"HMAC-SHA256 (v1) and Ed25519 (v1a) with {first}" + "".join(f"; published too: {key}" for key in others)
