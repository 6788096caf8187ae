"""``celery -A acme a2a …``: the commands that belong to an app."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import uvicorn
from click.core import ParameterSource

from ..config import Settings
from ..errors import ConfigError
from ..gateway.auth.configured import authenticator_of, is_loopback
from ..gateway.metrics import FOLDER
from ..sealing import sealer_of
from ..store import AsyncStore, Keys
from ..store.start_check import check_store
from ..telemetry.logs import set_up
from . import client
from .deliveries import deliveries
from .dev import dev_options, run_dev
from .doctor import doctor
from .drain import drain
from .forwarding import behind_proxies
from .location import named_location, prepared, with_agents
from .migrate import migrate
from .requeue import requeue
from .stats import stats
from .stopping import told_to_stop
from .supervisor import DevOptions, Target

logger = logging.getLogger(__name__)

APP_VARIABLE = "A2A_CELERY_APP"
"""How a gateway with several processes tells each of them which app to serve."""

GRACEFUL = 8
"""Seconds in which a gateway answers what it can before it exits: those of `leaving.PATIENCE`, and some to write."""

HTTPTOOLS = "a2a_celery.cli.http_heads:BoundedProtocol"
"""uvicorn's server on httptools, where that is installed."""

LEVEL_VARIABLE = "A2A_CELERY_LOG_LEVEL"
"""And at which level to log."""


@contextmanager
def counting_together() -> Iterator[None]:
    """A block whose child processes count in one folder: they share a port, and any of them may be asked."""
    if FOLDER in os.environ:  # then whoever set it looks after it
        yield
        return
    with TemporaryDirectory(prefix="a2a-figures-") as folder:
        os.environ[FOLDER] = folder
        yield


@click.group(name="a2a")
def a2a() -> None:
    """A2A (Agent2Agent protocol) on this Celery app."""


@a2a.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, help="The port for JSON-RPC and HTTP+JSON; 0 picks a free one."
)
@click.option("--grpc-port", type=int, default=None, help="The port for gRPC. Not given: A2A_GRPC_PORT, else no gRPC.")
@click.option("--workers", default=1, show_default=True, help="Gateway processes that share the port.")
@click.option("--log-level", default="info", show_default=True)
@click.pass_context
def gateway(context: click.Context, host: str, port: int, grpc_port: int | None, workers: int, log_level: str) -> None:
    """Serve the agents over A2A."""
    if grpc_port is not None:
        os.environ["A2A_GRPC_PORT"] = str(grpc_port)
    if context.get_parameter_source("host") is not ParameterSource.DEFAULT:
        os.environ["A2A_GRPC_HOST"] = host
    found = prepared(context)
    set_up(log_level, found.settings.log_format)
    _look_at_store(found.settings)
    _warn_of_open_gateway(host, found.settings)
    # On shutdown streams are cut at once, and their clients come back with Last-Event-ID; others see `told_to_stop`.
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": log_level,
        "log_config": None,
        "loop": "auto" if found.settings.uvloop else "asyncio",
        "http": HTTPTOOLS if find_spec("httptools") else "h11",
        "server_header": False,  # who asks need not know what serves
        "timeout_graceful_shutdown": GRACEFUL,
        "proxy_headers": False,  # see `behind_proxies`
        # longer than the proxies in front keep theirs: whoever closes first must not be the one that is asked
        "timeout_keep_alive": 75,
    }
    if workers == 1:
        try:
            asgi = found.asgi()
        except ConfigError as e:
            raise click.ClickException(str(e)) from e
        uvicorn.run(behind_proxies(told_to_stop(asgi)), **options)
    else:
        os.environ |= {APP_VARIABLE: named_location(context), LEVEL_VARIABLE: log_level}
        with counting_together():
            uvicorn.run("a2a_celery.cli.serving:asgi", factory=True, workers=workers, **options)


def _warn_of_open_gateway(host: str, settings: Settings) -> None:
    """Log a warning if a gateway without authentication listens beyond this machine."""
    hosts = {host} if settings.grpc_port is None else {host, settings.grpc_host}
    beyond = sorted(address for address in hosts if not is_loopback(address))
    if beyond and authenticator_of(settings) is None:
        logger.warning("listening on %s without authentication: other machines reach it too", ", ".join(beyond))


def _look_at_store(settings: Settings) -> None:
    """Says in one line what the gateway's own start would end with."""

    async def look() -> None:
        store, keys = AsyncStore(settings.store_url), Keys(settings.key_prefix)
        try:
            authenticator_of(settings)
            await check_store(store, keys, settings, sealer_of(settings), report=False)  # the gateway itself reports
        finally:
            await store.aclose()

    try:
        asyncio.run(look())
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


@a2a.command()
@click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Touched every 5 seconds while the store is reached; for probes.",
)
@click.option("--metrics-port", type=int, help="The port for /metrics and /health/live; 0 picks a free one.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address they are served on.")
@click.option("--log-level", default="info", show_default=True)
@click.pass_context
def watcher(
    context: click.Context, alive_file: Path | None, metrics_port: int | None, metrics_host: str, log_level: str
) -> None:
    """Look after what others dropped, and deliver.

    Run one, better two, beside the gateways: they see to lost workers, to what no worker began, and to webhooks.
    """
    found = prepared(context)
    set_up(log_level, found.settings.log_format)
    try:
        watching = found.watcher()
        if metrics_port is not None:
            port = watching.figures.serve(metrics_host, metrics_port)
            logger.info("figures at http://%s:%d/metrics", metrics_host, port)
        watching.run_until_signalled(alive_file)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


@a2a.command()
@dev_options
@click.pass_context
def dev(context: click.Context, /, **chosen: Any) -> None:
    """Run all of it here: Redis, a worker, a watcher and a gateway.

    Redis is embedded (yours from PATH, else the one of a2a-celery[embedded]), unless A2A_STORE_URL or --redis-url names
    one. The embedded one is also the broker, unless CELERY_BROKER_URL is set: what the app's own configuration names is
    for production, and stays untouched. Ctrl-C stops everything.
    """
    found = with_agents(context)
    context.exit(run_dev(Target(found.celery, named_location(context)), DevOptions(**chosen)))


for command in (
    client.send,
    client.get,
    client.tail,
    client.cancel,
    client.list_,
    requeue,
    deliveries,
    doctor,
    drain,
    stats,
    migrate,
):
    a2a.add_command(command)
