"""Environment variables of the processes that ``dev`` and ``demo`` start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from secrets import token_urlsafe

from celery import Celery

from ...errors import ConfigError
from ...settings import CONF_PREFIX, ENV_PREFIX, Settings
from ...settings.urls import (
    BROKER_READ_VARIABLE,
    BROKER_VARIABLE,
    BROKER_WRITE_VARIABLE,
    RESULTS_VARIABLE,
    is_redis_url,
    is_sentinel_url,
)

STORE = "A2A_STORE_URL"
PUBLIC = "A2A_PUBLIC_URL"

BROKER_SCHEMES = {"unix": "redis+socket", "valkeys": "rediss", "valkey": "redis"}
"""Schemes of store URLs that have another name in Celery."""


def with_embedded(
    app: Celery, environ: Mapping[str, str], store_url: str, broker_url: str, *, lasting: bool, loopback: bool
) -> dict[str, str]:
    """Return the environment of a fleet whose store and broker are the embedded Redis.

    URLs in `environ` are kept. The broker in the app's configuration is replaced, because it is meant for production.
    The result backend in the configuration is replaced if it is a Redis server.

    Args:
        lasting: True if the embedded Redis keeps its data. Otherwise, a secret key is generated unless one is set.
        loopback: True if only this machine can reach the gateway. Posts to this machine are then allowed, unless the
            data is lasting.
    """
    env = {**_common(environ), **broker_variables(environ, broker_url), STORE: store_url}
    results_url = str(app.conf.result_backend or "")
    if is_redis_url(results_url) or is_sentinel_url(results_url):
        env.setdefault(RESULTS_VARIABLE, broker_url)
    if lasting:
        return env
    networks = {"allow_networks": "127.0.0.0/8 ::1/128"} if loopback else {}
    return with_defaults(app, env, secret_key=token_urlsafe(32), **networks)


def with_redis(app: Celery, environ: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the environment of a fleet whose store is the Redis server at `url`.

    The server is also the broker, unless a broker is configured.

    Raises:
        ConfigError: `url` is a Sentinel URL, and no broker is configured. kombu needs the name of the primary from the
            app's configuration.
    """
    env = {**_common(environ), STORE: url}
    if not app.conf.broker_url:  # includes Celery's environment variable
        if is_sentinel_url(url):
            raise ConfigError("the store uses Sentinels: set broker_url, and broker_transport_options, in the app")
        env[BROKER_VARIABLE] = _broker_url(url)
    return env


def with_page(app: Celery, environ: Mapping[str, str], *, loopback: bool) -> dict[str, str]:
    """Return the environment of a fleet that serves the operator's page.

    Every caller is an operator if only this machine can reach the gateway and the gateway authenticates no callers.
    """
    operators = {"operators": "*"} if loopback and not _authenticates(app, environ) else {}
    return with_defaults(app, environ, ui="on", **operators)


def with_defaults(app: Celery, environ: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return the environment with `settings` by name, except those that `environ` or the app's configuration sets."""
    defaults = {name: value for name, value in settings.items() if app.conf.get(CONF_PREFIX + name) in (None, "")}
    return {**{ENV_PREFIX + name.upper(): value for name, value in defaults.items()}, **environ}


def broker_variables(environ: Mapping[str, str], broker_url: str) -> dict[str, str]:
    """Return the variables that make `broker_url` the broker, unless `environ` contains other URLs.

    In Celery, `broker_read_url` and `broker_write_url` of an app outrank CELERY_BROKER_URL. The variables for reading
    and writing are therefore always set.
    """
    url = environ.get(BROKER_VARIABLE) or broker_url
    read_and_write = (BROKER_READ_VARIABLE, BROKER_WRITE_VARIABLE)
    return {BROKER_VARIABLE: url, **{name: environ.get(name) or url for name in read_and_write}}


def shared_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `env` that the commands of the app need: the store, the broker, and all settings except
    the secrets of the gateway's authentication."""
    names = [f.name for f in fields(Settings) if f.repr or not f.name.startswith("auth_")]
    celery_variables = (BROKER_VARIABLE, BROKER_READ_VARIABLE, BROKER_WRITE_VARIABLE, RESULTS_VARIABLE)
    shared = {*celery_variables, *(ENV_PREFIX + name.upper() for name in names)}
    return {name: value for name, value in env.items() if name in shared}


def _broker_url(store_url: str) -> str:
    scheme, _, rest = store_url.partition("://")
    url = f"{BROKER_SCHEMES.get(scheme, scheme)}://{rest}"
    return url.replace("db=", "virtual_host=") if scheme == "unix" else url


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    # Output is unbuffered, so that the output of agents appears immediately. A public URL in the app's configuration
    # does not belong to this gateway. A public URL in the environment may belong to a tunnel and is kept.
    return {PUBLIC: "", **environ, "PYTHONUNBUFFERED": "1"}


def _authenticates(app: Celery, environ: Mapping[str, str]) -> bool:
    names = [f.name for f in fields(Settings) if f.name.startswith("auth_")]
    return any(ENV_PREFIX + name.upper() in environ or app.conf.get(CONF_PREFIX + name) is not None for name in names)
