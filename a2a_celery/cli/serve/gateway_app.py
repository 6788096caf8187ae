"""ASGI application of a gateway process: its factory, trusted proxies and early notice of shutdown signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from celery.app.utils import find_app
from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ...app import A2A, import_modules
from ...gateway.auth.http import PeerAddressMiddleware
from ...telemetry.logs import set_up

APP_VARIABLE = "A2A_CELERY_APP"
"""Environment variable with the location of the app, for the processes of ``gateway --workers N``."""

LEVEL_VARIABLE = "A2A_CELERY_LOG_LEVEL"
"""Environment variable with the log level, for the processes of ``gateway --workers N``."""


SWITCH_INTERVAL = 0.001
"""Seconds for which a thread that parses a large body keeps the event loop waiting; Python's default is 0.005."""


def asgi() -> Starlette:
    """Return the application of one of several gateway processes. Each imports the Celery app by its name."""
    app = find_app(os.environ[APP_VARIABLE])
    import_modules(app)
    a2a = A2A.of(app)
    set_up(os.environ[LEVEL_VARIABLE], a2a.settings.log_format)
    return gateway_app(a2a)


def gateway_app(a2a: A2A) -> Starlette:
    """Return the application that uvicorn serves.

    Raises:
        ConfigError: A setting cannot be used.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    return _trust_proxies(_begin_shutdown_on_signals(a2a.asgi(standalone=True)))


def _trust_proxies(asgi: Starlette) -> Starlette:
    """Take the scheme and the client of a request from the proxies in ``FORWARDED_ALLOW_IPS``.

    uvicorn's own ``proxy_headers`` are off, since they replace the connected peer before the application sees it. The
    setting `auth_proxy_networks` needs that peer: only it may vouch for a client certificate, not an address in a
    header.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    asgi.add_middleware(ProxyHeadersMiddleware, trusted_hosts=trusted)
    asgi.add_middleware(PeerAddressMiddleware)  # the middleware added last runs first
    return asgi


def _begin_shutdown_on_signals(asgi: Starlette) -> Starlette:
    """Begin the gateway's graceful shutdown on SIGTERM and SIGINT.

    uvicorn would notify the application only after all requests have ended.
    """
    wrapped = asgi.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with wrapped(app) as state:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                _prepend_handler(number, lambda: loop.call_soon_threadsafe(app.state.shutdown.begin))
            yield state  # uvicorn then restores the handlers from before its own

    asgi.router.lifespan_context = lifespan
    return asgi


def _prepend_handler(number: signal.Signals, callback: Callable[[], object]) -> None:
    server_handler = signal.getsignal(number)

    def handle(received: int, frame: FrameType | None) -> None:
        callback()
        if callable(server_handler):
            server_handler(received, frame)

    # sse-starlette finds the server through this attribute
    setattr(handle, "__self__", getattr(server_handler, "__self__", None))  # noqa: B010 - not declared for functions
    signal.signal(number, handle)
