"""Environment of the child processes of ``dev``: the store, the broker. Variables win over configuration."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_urlsafe

from celery import Celery

from ...errors import ConfigError
from ...settings.urls import is_redis_url, is_sentinel_url

STORE = "A2A_STORE_URL"
BROKER = "CELERY_BROKER_URL"
RESULTS = "CELERY_RESULT_BACKEND"
PUBLIC = "A2A_PUBLIC_URL"
SECRET_KEY = "A2A_SECRET_KEY"
NETWORKS = "A2A_ALLOW_NETWORKS"


def with_embedded(
    app: Celery, environ: Mapping[str, str], store_url: str, broker_url: str, *, lasting: bool, loopback: bool
) -> dict[str, str]:
    """Return the environment with the embedded Redis as store, as broker, and in place of a Redis result backend.

    URLs in the environment stay. URLs in the app's configuration are replaced: they are for production. Without
    `lasting` data there is a generated secret key. Without `lasting` data and with a `loopback` gateway, webhooks to
    this machine are allowed, so that they can be tried out. A gateway that other machines reach must not allow them.
    """
    env = {BROKER: broker_url, **_common(environ), STORE: store_url}
    if is_redis_url(str(app.conf.result_backend or "")):
        env.setdefault(RESULTS, broker_url)
    if not lasting and not app.conf.get("a2a_secret_key"):
        env.setdefault(SECRET_KEY, token_urlsafe(32))
    if not lasting and loopback and not app.conf.get("a2a_allow_networks"):
        env.setdefault(NETWORKS, "127.0.0.0/8 ::1/128")
    return env


def with_redis(app: Celery, environ: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the environment with the Redis at `url` as store, and as broker unless one is configured.

    Raises:
        ConfigError: `url` names Sentinels and no broker is configured. kombu needs the primary's name from the app.
    """
    env = {**_common(environ), STORE: url}
    if not app.conf.broker_url:  # Celery reads its variable here too
        if is_sentinel_url(url):
            raise ConfigError("the store uses Sentinels: set broker_url, and broker_transport_options, in the app")
        env[BROKER] = celery_url(url)
    return env


def celery_url(url: str) -> str:
    """Return a store URL in Celery's form."""
    for ours, theirs in (("unix://", "redis+socket://"), ("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.startswith(ours):
            url = theirs + url[len(ours) :]
    return url.replace("db=", "virtual_host=") if url.startswith("redis+socket://") else url


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    # Unbuffered, so that an agent's output appears at once. A public URL in the app's configuration is not that of this
    # gateway. One in the environment may be a tunnel's, and stays.
    return {PUBLIC: "", **environ, "PYTHONUNBUFFERED": "1"}
