"""Loading of a command's Celery app with its agents and settings, and the app's location for child processes."""

from __future__ import annotations

import sys

import click
from celery import Celery

from ..app import A2A, import_modules
from ..errors import ConfigError
from ..integrations.celery import disable_tls_on_sockets


def app_location(context: click.Context) -> str:
    """Return the location of the command's app, for the ``-A`` option of another process.

    ``-A`` takes precedence, because its module may add agents to the app of another module, or configure message
    signing for the app.

    Returns:
        The value of the command's ``-A``, or "module:attribute" of an imported module that contains the app.

    Raises:
        ConfigError: ``-A`` is not set, and no imported module contains the app.
    """
    location = context.find_root().params.get("app")
    return location if isinstance(location, str) else _holder(context.obj.app)


def _holder(app: Celery) -> str:
    for name, module in list(sys.modules.items()):
        if name == "__main__" or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise ConfigError(f"the Celery app {app.main!r} is not in a module that another process can import")


def load_a2a(context: click.Context) -> A2A:
    """Return the `A2A` object of the command's app, after importing the modules with its agents.

    TLS options do not apply to a broker or result backend on a Unix socket; see `disable_tls_on_sockets`.

    Raises:
        click.ClickException: The app has no A2A.
    """
    app: Celery = context.obj.app
    import_modules(app)
    disable_tls_on_sockets(app)
    try:
        return A2A.of(app)
    except ConfigError as e:
        raise click.ClickException(str(e)) from e


def load_configured_a2a(context: click.Context) -> A2A:
    """Return the `A2A` object of the command's app, with its settings loaded and validated.

    Raises:
        click.ClickException: The app has no A2A, or a setting is invalid.
    """
    a2a = load_a2a(context)
    try:
        _ = a2a.settings  # loads and validates the settings
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    return a2a


def unknown_agent(a2a: A2A, agent: str, more: str = "") -> click.ClickException:
    """Return the error for the name of an agent that is not in `a2a`. The text ends with `more`."""
    return click.ClickException(f"no agent {agent!r}; this app has {', '.join(a2a.agents) or 'none'}{more}")
