"""``a2a-celery``: the commands that need no app."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from .call import call
from .dev import dev_options, run_dev
from .supervisor import DevOptions, Target

SAMPLES = "a2a_celery.samples"
"""The sample agents in an installed package (see pyproject.toml); in a checkout they are ``workers``, beside it."""


@click.group()
@click.version_option(package_name="a2a-celery")
def main() -> None:
    """A2A (Agent2Agent protocol) on a Celery fleet."""


@main.command()
@dev_options
@click.pass_context
def demo(context: click.Context, /, **chosen: Any) -> None:
    """Run sample agents: Redis, a worker, a watcher and a gateway, and what to try with them.

    The same as ``celery -A … a2a dev``, which does it with your app. Ctrl-C stops everything.
    """
    context.exit(run_dev(sample_agents(), DevOptions(**chosen)))


main.add_command(call)


def sample_agents() -> Target:
    """The sample app of this very package, wherever this was called.

    Its processes run in the folder that the package is in: Python and Celery look for modules in the current one first,
    and that may be a checkout of this project, without what is installed here.
    """
    folder = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(folder))
    package = SAMPLES if find_spec(SAMPLES) is not None else "workers"
    module = importlib.import_module(f"{package}.app")
    module.app.loader.import_default_modules()
    return Target(module.app, f"{package}.app", folder)
