"""Where an app lives, as ``celery -A`` would name it: other processes have to import it."""

from __future__ import annotations

import sys

import click
from celery import Celery

from ..app import A2A, import_modules
from ..errors import ConfigError


def named_location(context: click.Context) -> str:
    """What the command's ``-A`` said: that module may add agents, or sign messages, where another made the app.

    Raises:
        ConfigError: it said nothing, and no imported module holds the app.
    """
    named = context.find_root().params.get("app")
    return named if isinstance(named, str) else _holder(context.obj.app)


def _holder(app: Celery) -> str:
    """ "module:attribute" of `app`."""
    for name, module in list(sys.modules.items()):
        if name == "__main__" or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise ConfigError(f"the Celery app {app.main!r} is in no module that another process could import")


def with_agents(context: click.Context) -> A2A:
    """The A2A of the app that the command was called with, with all its agents.

    Raises:
        click.ClickException: it has none.
    """
    app: Celery = context.obj.app
    import_modules(app)
    try:
        return A2A.of(app)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


def prepared(context: click.Context) -> A2A:
    """`with_agents`, and its settings are fine; what is wrong with them is one clear line.

    Raises:
        click.ClickException: the app has no agents, or a setting can't be used.
    """
    found = with_agents(context)
    try:
        _ = found.settings  # reads and checks them
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    return found
