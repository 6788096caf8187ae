"""ASGI application of the test agents behind Starlette's authentication middleware."""

from __future__ import annotations

from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from tests.support.agents.basic import a2a


class Tokens(AuthenticationBackend):
    """Backend that accepts "Bearer <secret>-<user>" as <user>. A request without a token is anonymous."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        header = conn.headers.get("authorization")
        if header is None:
            return None
        return AuthCredentials(["authenticated"]), SimpleUser(header.rpartition("-")[2])


def asgi() -> ASGIApp:
    """Return the application, for ``uvicorn --factory``."""
    return AuthenticationMiddleware(a2a.asgi(), backend=Tokens())
