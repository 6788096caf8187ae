"""``a2a-celery``: the commands that need no app."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from .client.call import call
from .dev.command import dev_options, run_dev
from .dev.supervisor import AppLocation, DevOptions
from .keys import keys
from .new_project.command import init
from .options import CommandGroup

SAMPLES = "a2a_celery.samples"
"""Package with the sample agents in an installation (see pyproject.toml). In a checkout, the package is ``workers``."""


@click.group(cls=CommandGroup)
@click.version_option(package_name="a2a-celery")
def main() -> None:
    """A2A (Agent2Agent protocol) on a Celery fleet."""


@main.command()
@dev_options
@click.pass_context
def demo(context: click.Context, /, **chosen: Any) -> None:
    """Run sample agents with Redis, a worker, a watcher and a gateway.

    Prints a tour to try. The tour kills processes, which the demo starts again. ``celery -A … a2a dev`` runs your app.
    Ctrl-C stops all processes.
    """
    context.exit(run_dev(sample_agents(), DevOptions(has_tour=True, **chosen)))


main.add_command(call)
main.add_command(init)
main.add_command(keys)


def sample_agents() -> AppLocation:
    """Return the location of the sample app, independently of the current folder.

    The demo's processes run in the folder that contains the package. Otherwise, Python and Celery would first search
    the current folder, which may be a checkout of this project without its dependencies.
    """
    folder = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(folder))
    package = SAMPLES if find_spec(SAMPLES) is not None else "workers"
    module = importlib.import_module(f"{package}.app")
    module.app.loader.import_default_modules()
    return AppLocation(module.app, f"{package}.app", folder)
