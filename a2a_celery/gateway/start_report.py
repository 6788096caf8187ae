"""Log lines at the start of a gateway: store, broker, authentication and the source of each setting."""

from __future__ import annotations

import logging
import os

from celery import Celery

from ..settings import visible_settings
from ..settings.loading import IN_ENVIRONMENT, LoadedSettings, source_of
from ..settings.urls import url_address
from .signing_keys import signatures_line

logger = logging.getLogger(__name__)

BROKER_VARIABLES = ("CELERY_BROKER_WRITE_URL", "CELERY_BROKER_URL")
"""Variables that Celery reads before its configuration."""

SCHEMES = {
    "auth_jwks_url": "bearer tokens",
    "auth_jwt_key": "bearer tokens",
    "auth_api_keys": "API keys",
    "auth_identity_header": "client certificates",
}
"""Authentication schemes by the setting that enables each."""

NO_AUTHENTICATION = (
    "none: every client that reaches the gateway can run agents, read all tasks and cancel them. "
    "Set A2A_AUTH_JWKS_URL, A2A_AUTH_API_KEYS or A2A_AUTH_IDENTITY_HEADER."
)


def report_start(app: Celery, loaded: LoadedSettings) -> None:
    """Log the configuration of a gateway."""
    logger.info("store: %s", store_line(loaded))
    logger.info("broker: %s", broker_line(app))
    enabled = authentication_line(loaded)
    logger.log(logging.INFO if enabled else logging.WARNING, "authentication: %s", enabled or NO_AUTHENTICATION)
    signatures = signatures_line(loaded.settings)
    if signatures:
        logger.info("signatures of webhooks: %s", signatures)
    others = settings_line(loaded)
    if others:
        logger.info("settings: %s", others)


def store_line(loaded: LoadedSettings) -> str:
    """Return the address of the store and its source."""
    return _with_source(url_address(loaded.settings.store_url), loaded, "store_url")


def broker_line(app: Celery) -> str:
    """Return the address of the broker, without its password, and its source."""
    variable = next((name for name in BROKER_VARIABLES if os.environ.get(name)), "")
    key = "broker_write_url" if app.conf.get("broker_write_url") else "broker_url"
    source = f"{variable}{IN_ENVIRONMENT}" if variable else source_of(key, app.conf, app.namespace)
    return f"{app.connection_for_write().as_uri()} ({source})"


def authentication_line(loaded: LoadedSettings) -> str:
    """Return the enabled authentication schemes and their sources, or "" without any."""
    enabled = {name for name in SCHEMES if getattr(loaded.settings, name) is not None}
    return ", ".join(_with_source(scheme, loaded, name) for name, scheme in SCHEMES.items() if name in enabled)


def settings_line(loaded: LoadedSettings) -> str:
    """Return every other setting that was set, with its source, and with its value unless that is a secret."""
    values = visible_settings(loaded.settings)
    return ", ".join(
        _with_source(f"{name} = {values[name]!r}" if name in values else name, loaded, name)
        for name in loaded.sources
        if name != "store_url" and name not in SCHEMES
    )


def _with_source(text: str, loaded: LoadedSettings, name: str) -> str:
    return f"{text} ({loaded.sources.get(name, 'the default')})"
