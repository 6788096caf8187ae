"""Service parameters of a request: the protocol version and the extensions.

An extension is active if the client requests it and the card declares it. The response lists the active extensions in
the same service parameter as the request, because the specification defines no parameter for responses.

Source: A2A specification 3.2.6, 3.6 and 4.6; unknown extensions are ignored (4.6.3).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from a2a.types import AgentCard
from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ...operations.errors import MAX_ID_LENGTH

Endpoint = Callable[[Request], Awaitable[Response]]

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?", re.ASCII)


def requested_version(request: HTTPConnection) -> str:
    """Return the protocol version in the header or the query of `request`, or "" if there is none.

    Source: A2A specification 3.2.6 (names are case-insensitive).
    """
    if version := request.headers.get(VERSION_HEADER):
        return version
    parameters = {name.lower(): value for name, value in request.query_params.items()}
    return parameters.get(VERSION_HEADER.lower(), "")


def require_version(requested_version: str, served_version: str) -> None:
    """Raise VersionNotSupportedError unless a request for `requested_version` can be served with `served_version`.

    Only the major and minor numbers are compared. A request without a version is a request for 0.3.
    """
    if served_as(requested_version) == served_version:
        return
    problem = (
        f"A2A version {requested_version[:MAX_ID_LENGTH]!r} is not served here"
        if requested_version
        else "No A2A version means 0.3"
    )
    raise VersionNotSupportedError(
        f"{problem}: send A2A-Version: {served_version}", data={"version": requested_version[:MAX_ID_LENGTH]}
    )


def served_as(requested_version: str) -> str:
    """Return the major and minor number of `requested_version`, or "" if `requested_version` is not a version."""
    numbers = _VERSION.fullmatch(requested_version or PROTOCOL_VERSION_0_3)
    return f"{int(numbers[1])}.{int(numbers[2])}" if numbers else ""


def active_extensions(card: AgentCard, requested_uris: set[str]) -> str:
    """Return the requested extensions of `card` in the format of the header ``A2A-Extensions``, or "" if there are
    none."""
    return ",".join(sorted({extension.uri for extension in card.capabilities.extensions} & requested_uris))
