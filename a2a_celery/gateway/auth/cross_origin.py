"""Checks that protect a gateway without authentication from the web pages that its users visit.

A browser on the same machine or network can reach the gateway. Two checks protect the gateway from pages of other
sites:

* **Cross-origin requests.** A request that may change something is refused if a page of another origin sent it.
* **DNS rebinding.** A request is refused if its ``Host`` is a name that an attacker can register and point at the
  gateway. IP addresses, names without a dot, names under a private suffix and configured names are accepted. If a
  surrounding application has authenticated the caller, any ``Host`` is accepted.

Clients other than browsers send neither ``Sec-Fetch-Site`` nor ``Origin``, and therefore pass the first check.

Source: Fetch Metadata Request Headers (W3C); Go's ``net/http.CrossOriginProtection``; RFC 6761, RFC 6762, RFC 8375 and
ICANN resolution 2024.07.29.06 (suffixes for private use).
"""

from __future__ import annotations

import logging
from collections.abc import Set
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ...settings import Settings
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..protocol_errors import PermissionDeniedError
from .http import error_response
from .schemes import OWN_SITE

logger = logging.getLogger(__name__)

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""HTTP methods that do not change state. A page of another origin cannot read the responses."""

PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc")
"""Suffixes of names that no attacker can register. Kubernetes Services have names under ``svc``, which is not a
top-level domain."""

OTHER_ORIGIN = (
    "A page of another origin sent the request, and the gateway does not authenticate its callers. "
    "Set a2a_trusted_origins to allow the origin of the page."
)
OTHER_HOST = (
    "The gateway does not serve this Host, and does not authenticate its callers. "
    "Set a2a_public_url or a2a_allowed_hosts to the name that clients use."
)


class CrossOriginProtection:
    """ASGI middleware that refuses requests that a page of another site may have caused.

    Args:
        app: Application to protect.
        settings: Settings of the deployment: `public_url`, `allowed_hosts` and `trusted_origins`.
        rpc: Paths of the JSON-RPC binding. Errors at other paths have the format of HTTP+JSON.
    """

    def __init__(self, app: ASGIApp, settings: Settings, rpc: Set[str]) -> None:
        self._app = app
        public = urlsplit(settings.public_url or "")
        self._hosts = {host.lower() for host in settings.allowed_hosts} | {(public.hostname or "").lower()}
        self._origins = {origin.lower() for origin in settings.trusted_origins}
        if settings.public_url:
            self._origins.add(f"{public.scheme}://{public.netloc}".lower())
        self._rpc = rpc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or refuse a request that a page of another site may have caused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        problem = self._problem(connection)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            logger.info("a request was refused: %s", problem, extra=about(Action.REQUEST_REFUSED))
            await error_response(connection, PermissionDeniedError(problem), self._rpc)(scope, receive, send)

    def _problem(self, connection: HTTPConnection) -> str | None:
        """Return the reason to refuse the request, or None to accept it."""
        if connection.scope["method"] not in SAFE_METHODS and not self._is_own_origin(connection):
            return OTHER_ORIGIN
        is_authenticated = getattr(connection.scope.get("user"), "is_authenticated", False)
        if not is_authenticated and not self._is_served(_host_name(connection.headers.get("host", ""))):
            return OTHER_HOST
        return None

    def _is_own_origin(self, connection: HTTPConnection) -> bool:
        origin = connection.headers.get("origin", "").lower()
        if origin in self._origins:
            return True
        site = connection.headers.get("sec-fetch-site")
        if site is not None:
            return site in OWN_SITE
        # Browsers send Sec-Fetch-Site to https and to loopback addresses only.
        try:
            return not origin or urlsplit(origin).netloc == connection.headers.get("host", "").lower()
        except ValueError:  # the header is not a URL
            return False

    def _is_served(self, name: str) -> bool:
        if "." not in name or name in self._hosts or "*" in self._hosts:
            return True
        if name.endswith(PRIVATE_SUFFIXES):
            return True
        return _is_address(name)


@lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    """Return the name or address in a ``Host`` header, without the port and in lower case, or "" if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host.lower()
