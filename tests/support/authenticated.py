"""The test agents behind authentication of the kind a deployment brings: Starlette's middleware around the gateway."""

from __future__ import annotations

from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from tests.support.agents import a2a


class Tokens(AuthenticationBackend):
    """Takes "Bearer <secret>-<user>" for the word of <user>; a request without is nobody's."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Who asks."""
        given = conn.headers.get("authorization")
        if given is None:
            return None
        return AuthCredentials(["authenticated"]), SimpleUser(given.rpartition("-")[2])


def asgi() -> ASGIApp:
    """The application, for ``uvicorn --factory``."""
    return AuthenticationMiddleware(a2a.asgi(), backend=Tokens())
