"""``celery -A … a2a watcher``: recovers lost runs, publishes waiting runs and delivers webhooks."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from ...telemetry.logging_setup import set_up
from ..app_loader import load_configured_a2a
from ..options import LOG_LEVEL, PORT

logger = logging.getLogger(__name__)


@click.command()
@click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="A file to touch every 5 seconds while the store is reachable; for probes.",
)
@click.option("--metrics-port", type=PORT, help="The port for /metrics and /health/live; 0 picks a free one.")
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="The address for /metrics and /health/live."
)
@click.option("--log-level", default="info", show_default=True, type=LOG_LEVEL)
@click.pass_context
def watcher(
    context: click.Context, alive_file: Path | None, metrics_port: int | None, metrics_host: str, log_level: str
) -> None:
    """Recover lost runs and deliver webhooks.

    Run at least one watcher, and preferably two. A watcher recovers runs of lost workers, publishes runs that no worker
    has begun, and delivers webhooks.
    """
    a2a = load_configured_a2a(context, joins_dev=False)
    set_up(a2a.celery, log_level, a2a.settings.log_format)
    watching = a2a.watcher()
    if metrics_port is not None:
        port = watching.metrics.serve(metrics_host, metrics_port)
        logger.info("metrics at http://%s:%d/metrics", metrics_host, port)
    watching.run_until_signalled(alive_file)
