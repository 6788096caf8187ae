"""The environment that ``dev`` gives to its children: which Redis, which broker. Variables win over configuration."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_urlsafe
from urllib.parse import urlsplit

from celery import Celery

from ..store_urls import STORE_SCHEMES

STORE = "A2A_STORE_URL"
BROKER = "CELERY_BROKER_URL"
RESULTS = "CELERY_RESULT_BACKEND"
PUBLIC = "A2A_PUBLIC_URL"
SECRET_KEY = "A2A_SECRET_KEY"
NETWORKS = "A2A_ALLOW_NETWORKS"


def with_embedded(
    app: Celery, environ: Mapping[str, str], store_url: str, broker_url: str, *, lasting: bool
) -> dict[str, str]:
    """The embedded Redis is the store, and stands in for the broker and for a result backend that is a Redis.

    What the environment names stays; what the app's configuration names does not: that is for production. Data that is
    gone at the end (not `lasting`) gets a secret key of its own, and webhooks on this machine: there is no other way to
    try them out.
    """
    env = {BROKER: broker_url, **_common(environ), STORE: store_url}
    if urlsplit(str(app.conf.result_backend or "")).scheme in STORE_SCHEMES:
        env.setdefault(RESULTS, broker_url)
    if not lasting and not app.conf.get("a2a_secret_key"):
        env.setdefault(SECRET_KEY, token_urlsafe(32))
    if not lasting and not app.conf.get("a2a_allow_networks"):
        env.setdefault(NETWORKS, "127.0.0.0/8 ::1/128")
    return env


def with_redis(app: Celery, environ: Mapping[str, str], url: str) -> dict[str, str]:
    """The Redis at `url` is the store; and the broker, unless the environment or the app's configuration names one."""
    env = {**_common(environ), STORE: url}
    if not app.conf.broker_url:  # Celery reads its variable here too
        env[BROKER] = for_celery(url)
    return env


def for_celery(url: str) -> str:
    """A store URL as Celery writes it."""
    for ours, theirs in (("unix://", "redis+socket://"), ("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.startswith(ours):
            url = theirs + url[len(ours) :]
    return url.replace("db=", "virtual_host=") if url.startswith("redis+socket://") else url


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    # Unbuffered: what an agent prints is shown when it prints it. A public address in the app's configuration is not
    # where this gateway is; one in the environment is meant (a tunnel), and stays.
    return {PUBLIC: "", **environ, "PYTHONUNBUFFERED": "1"}
