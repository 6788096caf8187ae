"""``celery -A … a2a``: the commands that need an app."""

from __future__ import annotations

from typing import Any

import click

from ..features.commands import COMMANDS
from .app_loader import app_location, load_a2a
from .client.task_commands import cancel, get, list_, send, tail
from .dev.command import dev_options, examples, run_dev
from .dev.supervisor import AppLocation, DevOptions
from .doctor.command import doctor
from .operator.drain import drain
from .operator.migrate import migrate
from .operator.signal_task import signal_task
from .operator.stats import stats
from .operator.top import top
from .options import CommandGroup
from .serve.gateway import gateway
from .serve.watcher import watcher


@click.group(name="a2a", cls=CommandGroup)
def a2a() -> None:
    """A2A (Agent2Agent protocol) on this Celery app."""


@a2a.command()
@dev_options
@click.option("--reload", is_flag=True, help="Restart the processes when a Python file in the current folder changes.")
@click.option(
    "--examples", "shows_examples", is_flag=True, help="Only print commands to try with the running processes."
)
@click.pass_context
def dev(context: click.Context, /, shows_examples: bool, **chosen: Any) -> None:
    """Run Redis, a worker, a watcher and a gateway on this machine.

    Starts an embedded Redis (redis-server from PATH, or from a2a-celery[embedded]), unless A2A_STORE_URL or --redis-url
    is set. The embedded Redis is also the broker, unless CELERY_BROKER_URL is set. The broker in the app's
    configuration is not used, because it is meant for production. A process that ends is started again. Ctrl-C stops
    all processes.

    The other commands of the app find the processes if you run the commands in the same folder.

    With --pool solo, breakpoint() in an agent opens the debugger in this terminal.
    """
    target = load_a2a(context)
    location, options = AppLocation(target.celery, app_location(context)), DevOptions(**chosen)
    if shows_examples:
        click.echo(examples(location, options))
        return
    context.exit(run_dev(location, options))


CLIENT = (send, get, tail, cancel, list_)
OPERATOR = (signal_task, doctor, drain, stats, top, migrate)
for command in (gateway, watcher, *CLIENT, *OPERATOR, *COMMANDS):
    a2a.add_command(command)
