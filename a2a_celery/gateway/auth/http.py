"""Authentication over HTTP: Starlette's, before anything else of a request is looked at."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from a2a.server.request_handlers.response_helpers import build_error_response
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..faults import UnauthenticatedError, rpc_status
from ..rest_errors import rest_error
from .authenticator import Authenticator
from .refusing import refusal
from .schemes import Presented, Refused

PEER = "a2a_peer"
"""Where, in a request's scope, the address of whoever is connected is, if `KeepsPeer` was there before a server's
middleware put the word of a proxy in its place."""


class Backend(AuthenticationBackend):
    """Starlette's interface to `authenticator`; what is at `public` paths is for everybody to read."""

    def __init__(self, authenticator: Authenticator, public: Set[str]) -> None:
        self._authenticator = authenticator
        self._public = public

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Who asks; None for a public path. Raises AuthenticationError for everybody else."""
        if _path(conn) in self._public and conn.scope.get("method") in ("GET", "HEAD"):
            return None
        identity = await self._authenticator.identify(presented(conn))
        return AuthCredentials(["authenticated"]), identity


def presented(conn: HTTPConnection) -> Presented:
    """What `conn` shows of who sends it."""
    peer: Any = conn.scope.get(PEER, conn.scope.get("client"))
    return Presented(conn.headers.getlist, peer[0] if peer else None)


def authentication(authenticator: Authenticator, *, public: Set[str], rpc: Set[str]) -> Middleware:
    """The middleware. At the paths `rpc` JSON-RPC is spoken, elsewhere HTTP+JSON: so are refusals."""

    def refuse(conn: HTTPConnection, error: Exception) -> Response:
        told = refusal(error)
        if conn.scope.get("method") == "POST" and _path(conn) in rpc:
            answer = build_error_response(None, told)
            response = JSONResponse(answer, status_code=rpc_status(answer))
        else:
            response = rest_error(told)
        if isinstance(told, UnauthenticatedError):
            bad_token = isinstance(error, Refused) and error.bad_token
            response.headers["WWW-Authenticate"] = authenticator.challenges(bad_token=bad_token)
        return response

    return Middleware(AuthenticationMiddleware, backend=Backend(authenticator, public), on_error=refuse)


def _path(conn: HTTPConnection) -> str:
    """The path inside of this application, which may be mounted in another."""
    path: str = conn.scope["path"]
    return path.removeprefix(conn.scope.get("root_path", ""))


class KeepsPeer:
    """An ASGI application that remembers who is really connected, for `presented`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
        scope[PEER] = scope.get("client")
        await self._app(scope, receive, send)
