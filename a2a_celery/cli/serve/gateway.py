"""``celery -A … a2a gateway``: serves the agents over A2A, behind trusted proxies and with graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import click
import uvicorn
from celery.app.utils import find_app
from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ...app import A2A, import_modules
from ...clock import SYSTEM_CLOCK, Clock
from ...crypto.jwk_sets import is_loopback
from ...crypto.sealing import sealer_of
from ...gateway.auth.from_settings import authenticator_from_settings
from ...gateway.auth.http import PeerAddressMiddleware
from ...gateway.metrics import FOLDER
from ...gateway.middleware.access_log import AccessLog
from ...gateway.shutdown import SERVER_LOGGER
from ...memory import freeze_heap, keep_freed_memory
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.admin.start_check import check_store
from ...telemetry.logging_setup import set_up
from ...telemetry.logs import LineLimit
from ..app_loader import app_location, load_configured_a2a
from ..options import LOG_LEVEL, PORT, available_port

APP_VARIABLE = "A2A_CELERY_APP"
"""Environment variable with the location of the app, for the processes of ``gateway --workers N``."""

LEVEL_VARIABLE = "A2A_CELERY_LOG_LEVEL"
"""Environment variable with the log level, for the processes of ``gateway --workers N``."""

HOST_VARIABLE = "A2A_CELERY_HOST"
"""Environment variable with the address to listen on, for the processes of ``gateway --workers N``."""

ACCESS_LOG_VARIABLE = "A2A_CELERY_ACCESS_LOG"
"""Environment variable that is not empty if requests are logged, for the processes of ``gateway --workers N``."""


INVALID_REQUEST = "Invalid HTTP request received."
"""Warning that uvicorn logs for each request that is not HTTP. Source: uvicorn 0.54, `HttpToolsProtocol`."""

SWITCH_INTERVAL = 0.0001
"""Switch interval of Python's threads, in seconds. A thread that parses a large body delays the event loop for up to
one interval. Python's default is 0.005."""


def asgi() -> Starlette:
    """Return the ASGI application of a process of ``gateway --workers N``. Each process imports the Celery app."""
    app = find_app(os.environ[APP_VARIABLE])
    import_modules(app)
    a2a = A2A.of(app)
    set_up(app, os.environ[LEVEL_VARIABLE], a2a.settings.log_format)
    return gateway_app(a2a, os.environ[HOST_VARIABLE], access_log=bool(os.environ[ACCESS_LOG_VARIABLE]))


def gateway_app(a2a: A2A, host: str, *, access_log: bool = False) -> Starlette:
    """Return the ASGI application that uvicorn serves.

    Args:
        a2a: Agents and settings of the gateway.
        host: Address on which the gateway listens for gRPC.
        access_log: True to log each HTTP request.

    Raises:
        ConfigError: A setting is invalid.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    logging.getLogger(SERVER_LOGGER).addFilter(InvalidRequestFilter())
    keep_freed_memory()
    application = a2a.asgi(standalone=True, grpc_host=host)
    if access_log:
        application.add_middleware(AccessLog)
    return _trust_proxies(_begin_shutdown_on_signals(freeze_heap_at_start(application)))


class InvalidRequestFilter(logging.Filter):
    """Filter that limits uvicorn's lines about requests that are not HTTP."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._limit = LineLimit(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is logged. The number of omitted lines is added to the next line."""
        if record.msg != INVALID_REQUEST:
            return True
        omitted = self._limit.admit()
        if omitted:
            record.msg = f"{INVALID_REQUEST} {omitted} more since the last line."
        return omitted is not None


def _trust_proxies(asgi: Starlette) -> Starlette:
    """Add middleware that reads the scheme and client address of a request from the X-Forwarded headers of the proxies
    in ``FORWARDED_ALLOW_IPS``.

    uvicorn's own ``proxy_headers`` option is disabled, because it replaces the address of the connection before the
    application sees it. The setting `auth_proxy_networks` needs the address of the connection, because only the
    connected peer may vouch for a client certificate.
    """
    trusted_hosts = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    asgi.add_middleware(ProxyHeadersMiddleware, trusted_hosts=trusted_hosts)
    asgi.add_middleware(PeerAddressMiddleware)  # the middleware that is added last runs first
    return asgi


def freeze_heap_at_start(asgi: Starlette) -> Starlette:
    """Extend the lifespan of `asgi` so that garbage collections skip all objects that exist after the start; see
    `freeze_heap`."""
    inner_lifespan = asgi.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with inner_lifespan(app) as state:
            freeze_heap()
            yield state

    asgi.router.lifespan_context = lifespan
    return asgi


def _begin_shutdown_on_signals(asgi: Starlette) -> Starlette:
    """Extend the lifespan of `asgi` so that SIGTERM and SIGINT begin the graceful shutdown.

    uvicorn itself notifies the application only after all requests have ended.
    """
    inner_lifespan = asgi.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with inner_lifespan(app) as state:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                _prepend_handler(number, lambda: loop.call_soon_threadsafe(app.state.shutdown.begin))
            yield state  # uvicorn then restores the handlers that were installed before its own

    asgi.router.lifespan_context = lifespan
    return asgi


def _prepend_handler(number: signal.Signals, callback: Callable[[], object]) -> None:
    server_handler = signal.getsignal(number)

    def handle(signal_number: int, frame: FrameType | None) -> None:
        callback()
        if callable(server_handler):
            server_handler(signal_number, frame)

    # sse-starlette finds the server by this attribute of the handler
    setattr(handle, "__self__", getattr(server_handler, "__self__", None))  # noqa: B010 - not declared for functions
    signal.signal(number, handle)


logger = logging.getLogger(__name__)

GRACEFUL = 8
"""Maximum duration of open requests at shutdown, in seconds: the gateway's own limit plus time to send the
responses."""

HTTPTOOLS = "a2a_celery.cli.serve.httptools_protocol:BoundedProtocol"
"""uvicorn protocol class based on httptools, used if httptools is installed."""

H11 = "a2a_celery.cli.serve.h11_protocol:BoundedH11Protocol"
"""uvicorn protocol class based on h11, used otherwise."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=PORT,
    help="The port for JSON-RPC and HTTP+JSON; 0 picks a free one.",
)
@click.option("--grpc-port", type=PORT, default=None, help="The port for gRPC. Default: A2A_GRPC_PORT, or no gRPC.")
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Gateway processes that share the port.",
)
@click.option("--log-level", default="info", show_default=True, type=LOG_LEVEL)
@click.option("--access-log/--no-access-log", default=False, show_default=True, help="Log each HTTP request.")
@click.pass_context
def gateway(
    context: click.Context,
    host: str,
    port: int,
    grpc_port: int | None,
    workers: int,
    log_level: str,
    access_log: bool,
) -> None:
    """Serve the agents over A2A."""
    if grpc_port is not None:
        os.environ["A2A_GRPC_PORT"] = str(grpc_port)
    a2a = load_configured_a2a(context, joins_dev=False)
    set_up(a2a.celery, log_level, a2a.settings.log_format)
    _check_store(a2a.settings)
    _check_ports(host, port, a2a.settings.grpc_port)
    _warn_of_open_gateway(host, a2a.settings)
    # At shutdown, streams close at once, and clients resume them with Last-Event-ID. See also
    # `_begin_shutdown_on_signals`.
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": log_level,
        "log_config": None,
        "access_log": False,  # see `AccessLog`
        "loop": "auto" if a2a.settings.uvloop else "asyncio",
        "http": HTTPTOOLS if find_spec("httptools") else H11,
        "ws": "none",
        "server_header": False,  # do not disclose the server
        "timeout_graceful_shutdown": GRACEFUL,
        "proxy_headers": False,  # see `_trust_proxies`
        # longer than proxies keep idle connections, so that the proxy is the side that closes them
        "timeout_keep_alive": 75,
    }
    if workers == 1:
        uvicorn.run(gateway_app(a2a, host, access_log=access_log), **options)
    else:
        variables = {APP_VARIABLE: app_location(context), LEVEL_VARIABLE: log_level, HOST_VARIABLE: host}
        os.environ |= {**variables, ACCESS_LOG_VARIABLE: "on" if access_log else ""}
        with shared_metrics_folder():
            uvicorn.run("a2a_celery.cli.serve.gateway:asgi", factory=True, workers=workers, **options)


def _warn_of_open_gateway(host: str, settings: Settings) -> None:
    """Log a warning if a gateway without authentication listens on more than loopback addresses."""
    if not is_loopback(host) and authenticator_from_settings(settings) is None:
        logger.warning("listening on %s without authentication: other machines reach it too", host)


def _check_ports(host: str, port: int, grpc_port: int | None) -> None:
    """Check that the ports for HTTP and gRPC are free before uvicorn starts, so that an error is printed as one
    line."""
    available_port(host, port, "--port")
    if grpc_port is not None:
        available_port(host, grpc_port, "--grpc-port", shared=True)


def _check_store(settings: Settings) -> None:
    """Check the authentication settings and the store before uvicorn starts, so that an error is printed as one
    line."""

    async def check() -> None:
        store, keys = AsyncStore(settings.store_url), Keys(settings.key_prefix)
        try:
            authenticator_from_settings(settings)
            await check_store(
                store, keys, settings, sealer_of(settings.secret_keys), report=False
            )  # the gateway logs its own report
        finally:
            await store.aclose()

    asyncio.run(check())


@contextmanager
def shared_metrics_folder() -> Iterator[None]:
    """Share a metrics folder with child processes. All processes share one port, so a scrape may reach any process."""
    if FOLDER in os.environ:  # a folder from the environment is not removed here
        yield
        return
    with TemporaryDirectory(prefix="a2a-metrics-") as folder:
        os.environ[FOLDER] = folder
        yield
