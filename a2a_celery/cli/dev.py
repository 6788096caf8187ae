"""A whole fleet in one command: ``celery -A … a2a dev``, or ``a2a-celery demo`` with the sample agents."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..app import A2A
from ..errors import ConfigError
from ..loading import with_files
from .addresses import free_or_given
from .environment import STORE
from .supervisor import DevOptions, Supervisor, Target


def dev_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `DevOptions` to a click command."""
    for option in reversed(
        (
            click.option("--pool", default="prefork", show_default=True, help="The worker's pool, as Celery names it."),
            click.option("--concurrency", default=4, show_default=True, help="Runs at a time."),
            click.option("--host", default="127.0.0.1", show_default=True, help="The gateway's address."),
            click.option("--port", default=8000, show_default=True, help="The gateway's port; 0 picks a free one."),
            click.option("--grpc-port", type=int, help="The port for gRPC; 0 picks a free one. Not given: no gRPC."),
            click.option(
                "--redis-url",
                help="Your Redis instead of the embedded one; also A2A_STORE_URL. It is the broker too, unless "
                "CELERY_BROKER_URL or the app's configuration names one.",
            ),
            click.option(
                "--data",
                type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
                help="A folder that keeps the embedded Redis' data, for the next time.",
            ),
        )
    ):
        command = option(command)
    return command


def run_dev(target: Target, options: DevOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Runs everything until it is told to stop (exit code 0) or a child dies (1); nothing is left of it.

    Raises:
        click.ClickException: it can't start; nothing runs.
    """
    try:
        environ = with_files(environ)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    redis_url = options.redis_url or environ.get(STORE)
    if options.data is not None and redis_url:
        raise click.UsageError(f"--data is for the embedded Redis, and --redis-url or {STORE} names another")
    try:
        port = free_or_given(options.host, options.port, "--port")
        grpc_port = options.grpc_port
        if grpc_port is not None:
            grpc_port = free_or_given(options.host, grpc_port, "--grpc-port")
        found = A2A.of(target.app)
        if not found.agents:
            raise ConfigError(f"{target.location} has no agents: a2a.add_agent(…), @a2a.agent(…)")
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    return Supervisor(target, options, port, grpc_port).run(environ, redis_url)
