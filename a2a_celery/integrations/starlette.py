"""Private API of Starlette that the gateway uses."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from . import Library

STARLETTE = Library("starlette>=1.0,<2", checked="1.10.0")
STARLETTE.require(Request, "_body", "_json")


def set_body(request: Request, body: bytes) -> None:
    """Make ``request.body()`` return `body`, which was read with ``request.stream()``."""
    request._body = body


def set_json(request: Request, value: Any) -> None:
    """Make ``request.json()`` return `value`, so that the endpoint does not parse the body again."""
    request._json = value


def drop_body(request: Request) -> None:
    """Drop the body of a served `request`. Starlette would keep the body in memory until the response stream ends."""
    vars(request).pop("_json", None)
    request._body = b""
