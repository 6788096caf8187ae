"""A gateway behind proxies: addresses are as these say, but who is connected is not forgotten."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ..gateway.auth.http import KeepsPeer


def behind_proxies(asgi: Starlette) -> Starlette:
    """The same application, with scheme and client of a request as the proxies in ``FORWARDED_ALLOW_IPS`` say.

    uvicorn would do that before the application sees who is connected (so its own ``proxy_headers`` are off), and a
    client's certificate is believed of whoever that is (`auth_proxy_networks`), not of an address in a header.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    asgi.add_middleware(ProxyHeadersMiddleware, trusted_hosts=trusted)
    asgi.add_middleware(KeepsPeer)  # the last one added is the first to be asked
    return asgi
