"""Versions of the protocol: the one that a request asks for, and the ones that are served.

Source: A2A specification 3.6.
"""

from __future__ import annotations

import re

from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from starlette.requests import HTTPConnection

from .faults import MAX_ID_LENGTH

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?", re.ASCII)


def asked_version(request: HTTPConnection) -> str:
    """Return the version that `request` names in its header or its query, "" for none."""
    return request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER, "")


def require_version(asked: str, served: str) -> None:
    """Raise VersionNotSupportedError unless a request for the version `asked` may be answered with version `served`.

    Major and minor number decide. A request that names no version is one of 0.3.
    """
    if served_as(asked) == served:
        return
    found = f"A2A version {asked[:MAX_ID_LENGTH]!r} is not served here" if asked else "No A2A version means 0.3"
    raise VersionNotSupportedError(f"{found}: send A2A-Version: {served}", data={"version": asked[:MAX_ID_LENGTH]})


def served_as(asked: str) -> str:
    """Return major and minor number of the version `asked`, without a patch number; "" if it is no version."""
    numbers = _VERSION.fullmatch(asked or PROTOCOL_VERSION_0_3)
    return f"{int(numbers[1])}.{int(numbers[2])}" if numbers else ""
