"""Environment variables of the processes that ``dev`` and ``demo`` start."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_urlsafe

from celery import Celery

from ...errors import ConfigError
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
SECRET_KEY = "A2A_SECRET_KEY"
NETWORKS = "A2A_ALLOW_NETWORKS"
UI = "A2A_UI"
LEASE_TTL = "A2A_LEASE_TTL"
OPERATORS = "A2A_OPERATORS"


def with_embedded(
    app: Celery, environ: Mapping[str, str], store_url: str, broker_url: str, *, lasting: bool, loopback: bool
) -> dict[str, str]:
    """Return the environment of a fleet whose store and broker are the embedded Redis.

    URLs in `environ` are kept. The broker in the app's configuration is replaced, because it is meant for production.
    The result backend in the configuration is replaced if it is a Redis server.

    Args:
        lasting: True if the embedded Redis keeps its data. Otherwise, a secret key is generated unless one is set.
        loopback: True if only this machine can reach the gateway. Webhooks to this machine are then allowed, unless the
            data is lasting.
    """
    env = {**_common(environ), **broker_variables(environ, broker_url), STORE: store_url}
    if is_redis_url(str(app.conf.result_backend or "")):
        env.setdefault(RESULTS_VARIABLE, broker_url)
    if not lasting and not app.conf.get("a2a_secret_key"):
        env.setdefault(SECRET_KEY, token_urlsafe(32))
    if not lasting and loopback and not app.conf.get("a2a_allow_networks"):
        env.setdefault(NETWORKS, "127.0.0.0/8 ::1/128")
    return env


def ignores_configuration(app: Celery, environ: Mapping[str, str]) -> bool:
    """Return True if the app configures a store or a broker that `with_embedded` replaces."""
    outranks_variable = app.conf.get("broker_read_url") or app.conf.get("broker_write_url")
    is_replaced = outranks_variable or (app.conf.broker_url and not environ.get(BROKER_VARIABLE))
    return bool(app.conf.get("a2a_store_url") or is_replaced)


def broker_variables(environ: Mapping[str, str], broker_url: str) -> dict[str, str]:
    """Return the variables that make `broker_url` the broker, unless `environ` contains other URLs.

    In Celery, `broker_read_url` and `broker_write_url` of an app outrank CELERY_BROKER_URL. The variables for reading
    and writing are therefore always set.
    """
    url = environ.get(BROKER_VARIABLE) or broker_url
    read_and_write = (BROKER_READ_VARIABLE, BROKER_WRITE_VARIABLE)
    return {BROKER_VARIABLE: url, **{name: environ.get(name) or url for name in read_and_write}}


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
        env[BROKER_VARIABLE] = celery_url(url)
    return env


def celery_url(url: str) -> str:
    """Convert a store URL to a broker URL for Celery."""
    for scheme, celery_scheme in (
        ("unix://", "redis+socket://"),
        ("valkeys://", "rediss://"),
        ("valkey://", "redis://"),
    ):
        if url.startswith(scheme):
            url = celery_scheme + url[len(scheme) :]
    return url.replace("db=", "virtual_host=") if url.startswith("redis+socket://") else url


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    # Output is unbuffered, so that the output of agents appears immediately. A public URL in the app's configuration
    # does not belong to this gateway. A public URL in the environment may belong to a tunnel and is kept.
    return {PUBLIC: "", **environ, "PYTHONUNBUFFERED": "1"}


DEBUGGER_LEASE_TTL = "3600"
"""Lease duration in seconds if a debugger can stop the worker. A stopped worker does not renew its leases."""


def with_debugger(app: Celery, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a default lease duration that is long enough for an agent at a breakpoint. A
    configured lease duration is preserved."""
    return {**({LEASE_TTL: DEBUGGER_LEASE_TTL} if app.conf.get("a2a_lease_ttl") is None else {}), **environ}


def with_tour(app: Celery, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``demo``, which serves the operator's page and uses a short lease, so that a lost
    worker is detected quickly.

    Every caller is an operator, unless the environment configures authentication.
    """
    defaults = {"a2a_ui": (UI, "on"), "a2a_lease_ttl": (LEASE_TTL, "5")}
    if not any(name.startswith("A2A_AUTH_") for name in environ):
        defaults["a2a_operators"] = (OPERATORS, "*")
    return {**dict(value for name, value in defaults.items() if app.conf.get(name) is None), **environ}
