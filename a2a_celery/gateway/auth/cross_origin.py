"""Access of web pages of other origins: CORS headers for the origins in `cors_origins`, and checks that protect a
gateway without authentication from the web pages that its users visit.

A browser on the same machine or network can reach the gateway. Two checks protect a gateway without authentication
from pages of other sites:

* **Cross-origin requests.** A request that may change something is refused if a page of another origin sent it.
* **DNS rebinding.** A request is refused if its ``Host`` is a name that an attacker can register and point at the
  gateway. IP addresses, ASCII names without a dot, names under a private suffix and configured names are accepted. If a
  surrounding application has authenticated the caller, any ``Host`` is accepted.

Clients other than browsers send neither ``Sec-Fetch-Site`` nor ``Origin``, and therefore pass the first check.

Source: Fetch standard (CORS); Fetch Metadata Request Headers (W3C); Go's ``net/http.CrossOriginProtection``; RFC 6761,
RFC 6762, RFC 8375 and ICANN resolution 2024.07.29.06 (suffixes for private use).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.utils.constants import VERSION_HEADER
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ...caller import API_KEY_HEADER, CARRIED_HEADERS
from ...settings import ANY_ORIGIN, Settings
from ..protocol_errors import HEADER, LAST_EVENT_ID, PUSH_EVENTS, Denial, PermissionDeniedError
from .http import error_response, path_within
from .refusal_log import PREFLIGHT, RefusalLog, RequestSource
from .schemes import OWN_SITE

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""HTTP methods that do not change state. A page of another origin cannot read the responses."""

PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc")
"""Suffixes of names that no attacker can register. Kubernetes Services have names under ``svc``, which is not a
top-level domain."""

OTHER_ORIGIN = (
    "A page of another origin sent the request, and the gateway does not authenticate its callers. "
    "Set a2a_cors_origins to allow the origin of the page."
)
OTHER_HOST = (
    "The gateway does not serve this Host, and does not authenticate its callers. "
    "Set a2a_public_url or a2a_allowed_hosts to the name that clients use."
)


METHODS = ("GET", "POST", "DELETE")
"""HTTP methods of the A2A bindings."""

READABLE_HEADERS = (HEADER, "WWW-Authenticate", HTTP_EXTENSION_HEADER, "ETag")
"""Response headers that a script of another origin may read, in addition to those that the Fetch standard allows."""


class CrossOriginAccess:
    """ASGI middleware that lets scripts of the origins in `cors_origins` call the agents and read the responses,
    including errors. Preflight requests need no credentials and count against no limit.

    Credentials mode is not supported: browsers send neither cookies nor client certificates.

    Args:
        app: Application to call.
        settings: Settings of the deployment: `cors_origins`.
        closed: Paths without CORS headers. The paths below a closed path are closed too.
        refusal_log: Log of the refused preflight requests.
    """

    def __init__(self, app: ASGIApp, settings: Settings, closed: Iterable[str], refusal_log: RefusalLog) -> None:
        self._app = app
        self._refusal_log = refusal_log
        self._closed = tuple(closed)
        own = (VERSION_HEADER, LAST_EVENT_ID, PUSH_EVENTS, *CARRIED_HEADERS)
        headers = ("Authorization", API_KEY_HEADER, *own)
        self._cors = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=METHODS,
            allow_headers=dict.fromkeys(header.lower() for header in headers),
            # for pages of public sites if the gateway has a private address
            allow_private_network=ANY_ORIGIN not in settings.cors_origins,
            expose_headers=READABLE_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application. Add CORS headers unless the path is closed."""
        is_open = scope["type"] == "http" and not self._is_closed(path_within(HTTPConnection(scope)))
        if is_open and scope["method"] == "OPTIONS":
            await (self._refusal(HTTPConnection(scope)) or self._cors)(scope, receive, send)
        else:
            await (self._cors if is_open else self._app)(scope, receive, send)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """Log and return the response for a preflight request that is refused, or return None."""
        headers = connection.headers
        if "origin" not in headers or "access-control-request-method" not in headers:
            return None
        response = self._cors.preflight_response(headers)
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return None
        text = f"{bytes(response.body).decode()}. a2a_cors_origins lists the allowed origins"
        source = RequestSource.of_http(connection)
        self._refusal_log.record(
            PREFLIGHT,
            text,
            source,
            origin=headers["origin"],
            requested_method=headers["access-control-request-method"],
            requested_headers=headers.get("access-control-request-headers", ""),
        )
        return response

    def _is_closed(self, path: str) -> bool:
        return any(path == closed or path.startswith(f"{closed}/") for closed in self._closed)


class CrossOriginProtection:
    """ASGI middleware that refuses requests that a page of another site may have caused.

    Args:
        app: Application to protect.
        settings: Settings of the deployment: `public_url`, `allowed_hosts` and `cors_origins`.
        rpc: Paths of the JSON-RPC binding. Errors at other paths have the format of HTTP+JSON.
        refusal_log: Log of the refused requests.
    """

    def __init__(self, app: ASGIApp, settings: Settings, rpc: Set[str], refusal_log: RefusalLog) -> None:
        self._app = app
        public = urlsplit(settings.public_url or "")
        self._hosts = {host.lower() for host in settings.allowed_hosts} | {(public.hostname or "").lower()}
        self._origins = {origin.lower() for origin in settings.cors_origins}
        if settings.public_url:
            self._origins.add(f"{public.scheme}://{public.netloc}".lower())
        self._rpc = rpc
        self._refusal_log = refusal_log

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
            header = "host" if problem.reason is Denial.HOST else "origin"
            details = {header: connection.headers.get(header, "")}
            self._refusal_log.record(problem.reason, problem.message, RequestSource.of_http(connection), **details)
            await error_response(connection, problem, self._rpc)(scope, receive, send)

    def _problem(self, connection: HTTPConnection) -> PermissionDeniedError | None:
        """Return the error for a refused request, or None to accept the request."""
        if connection.scope["method"] not in SAFE_METHODS and not self._is_own_origin(connection):
            return PermissionDeniedError(OTHER_ORIGIN, Denial.ORIGIN)
        is_authenticated = getattr(connection.scope.get("user"), "is_authenticated", False)
        if not is_authenticated and not self._is_served(_host_name(connection.headers.get("host", ""))):
            return PermissionDeniedError(OTHER_HOST, Denial.HOST)
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
        if ("." not in name and name.isascii()) or name in self._hosts or "*" in self._hosts:
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
