"""Complete fleet in one command: ``celery -A … a2a dev``, or ``a2a-celery demo`` with the sample agents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from ...agents import Agent
from ...app import A2A
from ...errors import ConfigError
from ...settings.loading import with_files
from ..app_loader import dev_addresses
from ..options import PORT, available_port, with_options
from .environment import STORE
from .next_steps import local_url, next_steps
from .supervisor import AppLocation, DevOptions, Supervisor

DJANGO_SETTINGS = "DJANGO_SETTINGS_MODULE"
DEFAULT_PORT = 8000


dev_options = with_options(
    click.option("--pool", default="prefork", show_default=True, help="The worker's pool (celery worker -P)."),
    click.option(
        "--concurrency",
        default=4,
        show_default=True,
        type=click.IntRange(min=1),
        help="Concurrent runs of the worker.",
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="The gateway's address."),
    click.option(
        "--port",
        type=PORT,
        help=f"The gateway's port; 0 picks a free one. Default: {DEFAULT_PORT}, or a free one if it is in use.",
    ),
    click.option("--grpc-port", type=PORT, help="The port for gRPC; 0 picks a free one. Default: no gRPC."),
    click.option(
        "--redis-url",
        help="A Redis server to use instead of the embedded one. Default: A2A_STORE_URL. It is the broker too, "
        "unless CELERY_BROKER_URL or the app's configuration names one.",
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        help="A folder in which the embedded Redis keeps its data between runs.",
    ),
    click.option("--verbose", is_flag=True, help="Also show the output of the processes while they start."),
)
"""Decorator that adds the options that ``dev`` and ``demo`` share to a command."""


def run_dev(target: AppLocation, options: DevOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Run the fleet, stop all its processes, and return the exit code of `Supervisor.run`.

    Raises:
        ConfigError: A variable, a port or the app is unusable.
        click.ClickException: The fleet cannot start.
    """
    environ = with_files(environ)
    redis_url = options.redis_url or environ.get(STORE)
    if options.data is not None and redis_url:
        raise click.UsageError(f"--data needs the embedded Redis: leave out --data, or --redis-url and {STORE}")
    port, grpc_port = gateway_port(options), options.grpc_port
    if grpc_port is not None:
        grpc_port = available_port(options.host, grpc_port, "--grpc-port")
    _agents(target, environ)
    return Supervisor(target, options, port, grpc_port).run(environ, redis_url)


def examples(target: AppLocation, options: DevOptions) -> str:
    """Return commands to try with the running fleet of the app, or with the fleet that `options` would start.

    Raises:
        click.ClickException: The app has no agents.
    """
    addresses = dev_addresses(target.app)
    url = (
        local_url(options.host, DEFAULT_PORT if options.port is None else options.port)
        if addresses is None
        else addresses.url
    )
    grpc_port = options.grpc_port if addresses is None else addresses.grpc_port
    return next_steps(_agents(target, os.environ), url, grpc_port, target.location)


def gateway_port(options: DevOptions, default: int = DEFAULT_PORT) -> int:
    """Return the gateway's port. The port `default` may be in use, for example by the gateway of a killed ``dev``."""
    if options.port is not None:
        return available_port(options.host, options.port, "--port")
    try:
        return available_port(options.host, default, "--port")
    except ConfigError:
        return available_port(options.host, 0, "--host")


def _agents(target: AppLocation, environ: Mapping[str, str]) -> Mapping[str, Agent]:
    agents = A2A.of(target.app).agents
    if not agents:
        text = f"{target.location} has no agents: @a2a.agent(…), a2a.add_agent(…), a2a.expose(…)"
        hint = "; in a Django project, an app with agents must be in INSTALLED_APPS"
        raise click.ClickException(text + hint if DJANGO_SETTINGS in environ else text)
    return agents
