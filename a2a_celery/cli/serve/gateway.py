"""``celery -A … a2a gateway``: serves the agents over A2A, behind trusted proxies and with graceful shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import gc
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
from click.core import ParameterSource
from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ...app import A2A, import_modules
from ...crypto.jwk_sets import is_loopback
from ...crypto.sealing import sealer_of
from ...errors import ConfigError
from ...gateway.auth.from_settings import authenticator_from_settings
from ...gateway.auth.http import PeerAddressMiddleware
from ...gateway.metrics import FOLDER
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.admin.start_check import check_store
from ...telemetry.logs import set_up
from ..app_loader import app_location, load_configured_a2a
from ..options import LOG_LEVEL, PORT, available_port

APP_VARIABLE = "A2A_CELERY_APP"
"""Environment variable with the location of the app, for the processes of ``gateway --workers N``."""

LEVEL_VARIABLE = "A2A_CELERY_LOG_LEVEL"
"""Environment variable with the log level, for the processes of ``gateway --workers N``."""


SWITCH_INTERVAL = 0.0001
"""Switch interval of Python's threads, in seconds. A thread that parses a large body delays the event loop for up to
one interval. Python's default is 0.005."""


MALLOC_OPTIONS = {"M_ARENA_MAX": (-8, 1), "M_MMAP_THRESHOLD": (-3, 1 << 25), "M_TRIM_THRESHOLD": (-1, 1 << 27)}
"""Number and value of each parameter of mallopt that the gateway sets. Source: malloc.h of the GNU C library."""


def asgi() -> Starlette:
    """Return the ASGI application of a process of ``gateway --workers N``. Each process imports the Celery app."""
    app = find_app(os.environ[APP_VARIABLE])
    import_modules(app)
    a2a = A2A.of(app)
    set_up(os.environ[LEVEL_VARIABLE], a2a.settings.log_format)
    return gateway_app(a2a)


def gateway_app(a2a: A2A) -> Starlette:
    """Return the ASGI application that uvicorn serves.

    Raises:
        ConfigError: A setting is invalid.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    _keep_freed_memory()
    return _trust_proxies(_begin_shutdown_on_signals(freeze_heap_at_start(a2a.asgi(standalone=True))))


def _keep_freed_memory() -> None:
    """Keep up to 128 MiB of freed memory in the process, with the GNU C library, unless the environment configures its
    malloc.

    By default, the library returns the memory of each large body to the kernel. The page faults of the next
    allocations take about half of the CPU time of a message of 6 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        for number, value in MALLOC_OPTIONS.values():
            mallopt(number, value)


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
    """Extend the lifespan of `asgi` so that garbage collections skip all objects that exist after the start.

    Modules, agents and services are about 180,000 objects, which live as long as the process. A full collection of
    these objects would stop the event loop for about 100 ms.
    """
    inner_lifespan = asgi.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with inner_lifespan(app) as state:
            gc.collect()
            gc.freeze()
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
    if context.get_parameter_source("host") is not ParameterSource.DEFAULT:
        os.environ["A2A_GRPC_HOST"] = host
    a2a = load_configured_a2a(context)
    set_up(log_level, a2a.settings.log_format)
    _check_store(a2a.settings)
    _check_ports(host, port, a2a.settings)
    _warn_of_open_gateway(host, a2a.settings)
    # At shutdown, streams close at once, and clients resume them with Last-Event-ID. See also
    # `_begin_shutdown_on_signals`.
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": log_level,
        "log_config": None,
        "access_log": access_log,
        "loop": "auto" if a2a.settings.uvloop else "asyncio",
        "http": HTTPTOOLS if find_spec("httptools") else H11,
        "server_header": False,  # do not disclose the server
        "timeout_graceful_shutdown": GRACEFUL,
        "proxy_headers": False,  # see `_trust_proxies`
        # longer than proxies keep idle connections, so that the proxy is the side that closes them
        "timeout_keep_alive": 75,
    }
    if workers == 1:
        try:
            asgi = gateway_app(a2a)
        except ConfigError as e:
            raise click.ClickException(str(e)) from e
        uvicorn.run(asgi, **options)
    else:
        os.environ |= {APP_VARIABLE: app_location(context), LEVEL_VARIABLE: log_level}
        with shared_metrics_folder():
            uvicorn.run("a2a_celery.cli.serve.gateway:asgi", factory=True, workers=workers, **options)


def _warn_of_open_gateway(host: str, settings: Settings) -> None:
    """Log a warning if a gateway without authentication listens on more than loopback addresses."""
    hosts = {host} if settings.grpc_port is None else {host, settings.grpc_host}
    beyond = sorted(address for address in hosts if not is_loopback(address))
    if beyond and authenticator_from_settings(settings) is None:
        logger.warning("listening on %s without authentication: other machines reach it too", ", ".join(beyond))


def _check_ports(host: str, port: int, settings: Settings) -> None:
    """Check that the ports for HTTP and gRPC are free before uvicorn starts, so that an error is printed as one
    line."""
    try:
        available_port(host, port, "--port")
        if settings.grpc_port is not None:
            available_port(settings.grpc_host, settings.grpc_port, "--grpc-port", shared=True)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


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

    try:
        asyncio.run(check())
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


@contextmanager
def shared_metrics_folder() -> Iterator[None]:
    """Share a metrics folder with child processes. All processes share one port, so a scrape may reach any process."""
    if FOLDER in os.environ:  # a folder from the environment is not removed here
        yield
        return
    with TemporaryDirectory(prefix="a2a-metrics-") as folder:
        os.environ[FOLDER] = folder
        yield
