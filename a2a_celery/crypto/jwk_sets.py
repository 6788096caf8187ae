"""JWK Sets of other parties (RFC 7517, section 5): validation of their URLs, and a bounded fetch."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from ..clock import SYSTEM_CLOCK, Clock

JWKS_TIMEOUT = 5.0
MAX_JWKS_BYTES = 1024 * 1024


def jwks_url_mistake(url: str) -> str:
    """Return the rule that the URL of a JWK Set violates, or "" if the URL is valid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "must name a host"
    if "@" in parts.netloc:
        return "must not contain a user or password, because log lines show the URL"
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return (
            "must begin with https:// (http:// to this machine only), "
            "because an attacker who changes the keys can forge any identity"
        )
    return "" if parts.hostname and _has_port(parts) else "must name a host"


def printable_url(url: str) -> str:
    """Return `url` for an error message, or "…" if `url` may contain a password."""
    return "…" if "@" in url else repr(url)


def is_loopback(host: str) -> bool:
    """Return True if `host` is ``localhost`` or a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def fetch_jwk_set(
    url: str, transport: httpx.AsyncBaseTransport | None = None, clock: Clock = SYSTEM_CLOCK
) -> Any:
    """Fetch a JWK Set, and return the JSON document without validating it.

    Redirects are not followed, because another server would then choose the keys. Requests to a loopback address do not
    use a proxy.

    Args:
        url: URL of the document.
        transport: httpx transport for the request, or None for the default transport.
        clock: Clock for the total timeout, twice `JWKS_TIMEOUT`.

    Raises:
        httpx.HTTPError: The request failed.
        TimeoutError: The response took too long.
        ValueError: The status is not 200, the response is too large, or the response is not JSON.
    """
    host = urlsplit(url).hostname or ""
    direct = {f"all://{f'[{host}]' if ':' in host else host}": None} if is_loopback(host) else None
    async with (
        clock.timeout(2 * JWKS_TIMEOUT),
        httpx.AsyncClient(timeout=JWKS_TIMEOUT, transport=transport, mounts=direct, follow_redirects=False) as http,
        http.stream("GET", url, headers={"Accept": "application/json"}) as response,
    ):
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}")
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_JWKS_BYTES:
                raise ValueError(f"more than {MAX_JWKS_BYTES} bytes")
        return json.loads(body)


def fetch_failure(error: Exception) -> str:
    """Return the reason why a fetch failed, for a log message."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "not JSON"
    return f"{type(error).__name__} {error}".strip()


def _has_port(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:
        return False
