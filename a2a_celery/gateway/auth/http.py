"""Authentication over HTTP by Starlette's middleware, before the body of a request is read."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from a2a.utils.errors import A2AError
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..bindings.endpoints import RpcRefusal, rest_error
from ..protocol_errors import UnauthenticatedError
from .authenticator import Authenticator, protocol_error
from .refusal_log import RequestSource
from .schemes import CredentialsRefused, PresentedCredentials

PEER = "a2a_peer"
"""Key of the peer's address in an ASGI scope. `PeerAddressMiddleware` sets the key before the server's proxy middleware
replaces the address of the connection with the client's address from the proxy."""


class Backend(AuthenticationBackend):
    """Starlette authentication backend that uses `authenticator`. GET requests to the `public` paths need no
    authentication."""

    def __init__(self, authenticator: Authenticator, public: Set[str]) -> None:
        self._authenticator = authenticator
        self._public = public

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the credentials and the identity of the caller, or None for a public path.

        Raises:
            AuthenticationError: The caller is unknown or cannot be authenticated now.
        """
        if path_within(conn) in self._public and conn.scope.get("method") in ("GET", "HEAD"):
            return None
        identity = await self._authenticator.identify(request_credentials(conn))
        return AuthCredentials(["authenticated"]), identity


def request_credentials(conn: HTTPConnection) -> PresentedCredentials:
    peer: Any = conn.scope.get(PEER, conn.scope.get("client"))
    return PresentedCredentials(conn.headers.getlist, peer[0] if peer else None)


def authentication(authenticator: Authenticator, *, public: Set[str], rpc: Set[str]) -> Middleware:
    """Return the authentication middleware.

    Args:
        authenticator: Authenticator of the callers.
        public: Paths at which GET requests need no authentication.
        rpc: Paths of the JSON-RPC binding. Errors at all other paths use HTTP+JSON.
    """

    def refuse(conn: HTTPConnection, error: Exception) -> Response:
        if isinstance(error, CredentialsRefused):
            authenticator.refusal_log.record(error.why.name.lower(), error.why.value, RequestSource.of_http(conn))
        client_error = protocol_error(error)
        response = error_response(conn, client_error, rpc)
        if isinstance(client_error, UnauthenticatedError):
            bad_token = isinstance(error, CredentialsRefused) and error.bad_token
            response.headers["WWW-Authenticate"] = authenticator.challenges(bad_token=bad_token)
        return response

    return Middleware(AuthenticationMiddleware, backend=Backend(authenticator, public), on_error=refuse)


def error_response(connection: HTTPConnection, error: A2AError, rpc: Set[str]) -> Response:
    """Return the response for `error` in the binding of the request.

    Args:
        connection: The refused request.
        error: The error that the client receives.
        rpc: Paths of the JSON-RPC binding. Errors at all other paths use HTTP+JSON.
    """
    if connection.scope.get("method") == "POST" and path_within(connection) in rpc:
        return RpcRefusal(error)
    return rest_error(error)


def path_within(connection: HTTPConnection) -> str:
    """Return the path within this application, which may be mounted in another application."""
    path: str = connection.scope["path"]
    return path.removeprefix(connection.scope.get("root_path", ""))


class PeerAddressMiddleware:
    """ASGI middleware that saves the address of the connection for `request_credentials`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Save the address of the connection in `scope`, and call the application."""
        scope[PEER] = scope.get("client")
        await self._app(scope, receive, send)
