"""Call contexts over HTTP: the caller, the address and the protocol version of a request.

Source: A2A specification 3.6 (versions).
"""

from __future__ import annotations

import re

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from starlette.requests import HTTPConnection, Request

from ..auth.identity import Identity
from ..cards import ADDRESS
from ..middleware.extensions import CARDS
from ..middleware.retry_after import LIMIT_ERRORS
from ..operations.streams import EVENT_IDS
from ..protocol_errors import MAX_ID_LENGTH

CALL = "a2a_call"
"""Key of a request's scope for its call context; missing if the request failed before it had one."""


_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?", re.ASCII)


def asked_version(request: HTTPConnection) -> str:
    """Return the version that `request` names in its header or its query, or "" without one."""
    return request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER, "")


def require_version(asked: str, served: str) -> None:
    """Raise VersionNotSupportedError unless a request for the version `asked` can be served by version `served`.

    Major and minor number decide. A request without a version is one of 0.3.
    """
    if served_as(asked) == served:
        return
    found = f"A2A version {asked[:MAX_ID_LENGTH]!r} is not served here" if asked else "No A2A version means 0.3"
    raise VersionNotSupportedError(f"{found}: send A2A-Version: {served}", data={"version": asked[:MAX_ID_LENGTH]})


def served_as(asked: str) -> str:
    """Return major and minor number of the version `asked`, without a patch number; "" if it is no version."""
    numbers = _VERSION.fullmatch(asked or PROTOCOL_VERSION_0_3)
    return f"{int(numbers[1])}.{int(numbers[2])}" if numbers else ""


class HttpCallContextBuilder(DefaultServerCallContextBuilder):
    """The SDK's builder, with the address of the agent and the lists that a binding and a handler share."""

    def __init__(self, path: str, version: str = PROTOCOL_VERSION_1_0) -> None:
        self._path = path
        self._version = version

    def build_user(self, request: Request) -> User:
        """Return the caller from this gateway's authentication, or from an outer application's."""
        user = request.scope.get("user")
        return user if isinstance(user, Identity) else super().build_user(request)

    def build(self, request: Request) -> ServerCallContext:
        """Return the call context of `request`.

        Raises:
            VersionNotSupportedError: The request names another version.
        """
        asked = asked_version(request)
        require_version(asked, self._version)
        context = super().build(request)
        # the SDK checks the version too, but not its minor number
        context.state["headers"][VERSION_HEADER.lower()] = asked or self._version
        context.state[CARDS] = request.scope.setdefault(CARDS, [])
        context.state[ADDRESS] = lambda: (str(request.base_url), self._path)
        context.state[EVENT_IDS] = request.scope.setdefault(EVENT_IDS, [])
        context.state[LIMIT_ERRORS] = request.scope.setdefault(LIMIT_ERRORS, [])
        request.scope[CALL] = context
        return context


CALLERS = HttpCallContextBuilder("")
"""Builder that identifies the caller of a request without a call context."""
