"""Loading of a command's Celery app with its agents and settings, and the app's location for child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from celery import Celery

from ..app import A2A, import_modules
from ..errors import ConfigError
from ..integrations.celery import disable_tls_on_sockets
from ..settings import FILE_SUFFIX
from ..settings.loading import read_settings
from .dev.address_file import AddressFile, DevAddresses
from .dev.environment import STORE


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
        ConfigError: The app has no A2A.
    """
    app: Celery = context.obj.app
    import_modules(app)
    disable_tls_on_sockets(app)
    return A2A.of(app)


def load_configured_a2a(context: click.Context, *, joins_dev: bool = True) -> A2A:
    """Return the `A2A` object of the command's app, with its settings loaded and validated.

    Args:
        joins_dev: True to use the fleet that ``dev`` has started for the app, unless a store is configured.

    Raises:
        ConfigError: The app has no A2A, or a setting is invalid.
    """
    a2a = load_a2a(context)
    if joins_dev:
        join_dev(a2a.celery)
    _ = a2a.settings  # loads and validates the settings
    return a2a


def join_dev(app: Celery) -> None:
    """Add the variables of the fleet that ``dev`` has started for the app to this process's environment.

    Variables that are set are kept. A configured store takes precedence: if it is not the store of ``dev``, the
    environment stays unchanged, and a note on stderr names the store's setting.
    """
    addresses = dev_addresses(app)
    if addresses is None:
        return
    store_url, source = _configured_store(app)
    if store_url not in ("", addresses.variables[STORE]):
        text = f"note: a2a dev of this app runs at {addresses.url}, but this command uses another store, from {source}"
        click.echo(text, err=True)
        return
    for name, value in addresses.variables.items():
        if f"{name}{FILE_SUFFIX}" not in os.environ:
            os.environ.setdefault(name, value)


def dev_addresses(app: Celery) -> DevAddresses | None:
    """Return the addresses of the fleet that ``dev`` has started for the app in this folder, or None if there is no
    such fleet. The reason why a file is ignored is printed on stderr."""
    try:
        return AddressFile(app, Path.cwd()).read()
    except ConfigError as e:
        click.echo(f"note: {e}", err=True)
        return None


def dev_url(app: Celery) -> str | None:
    """Return the gateway's address of the fleet that ``dev`` has started for the app, or None if there is no such fleet
    or another store is configured."""
    addresses = dev_addresses(app)
    is_chosen = addresses is not None and _configured_store(app)[0] in ("", addresses.variables[STORE])
    return addresses.url if addresses is not None and is_chosen else None


def _configured_store(app: Celery) -> tuple[str, str]:
    """Return the URL of the store and the source of the URL, or empty texts if no store is configured. Errors of other
    settings are left to the command."""
    try:
        settings, sources = read_settings(app.conf, namespace=app.namespace)
    except ConfigError:
        return "", ""
    return settings.store_url, sources["store_url"]


def unknown_agent(a2a: A2A, agent: str, more: str = "") -> click.ClickException:
    """Return the error for the name of an agent that is not in `a2a`. The text ends with `more`."""
    return click.ClickException(f"no agent {agent!r}; this app has {', '.join(a2a.agents) or 'none'}{more}")
