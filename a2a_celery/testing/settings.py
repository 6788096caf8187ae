"""Settings for simulations, derived from the settings of the app under test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from celery import Celery

from ..settings import CONF_PREFIX, Settings, default_of
from ..settings.loading import LoadedSettings, read_settings

OWNER_HEADER = "X-A2A-Tester-Owner"
"""Header with the owner of a simulated request, like the header in which a proxy passes the authenticated user."""


def simulated_settings(
    app: Celery, store_url: str, prefix: str, owner: str, changes: Mapping[str, Any]
) -> LoadedSettings:
    """Return the settings of `app` for a simulation, with `changes`.

    Settings that need other servers, or that configure authentication, operators or the web interface, do not apply
    unless `changes` contains them.

    Raises:
        ConfigError: A setting is invalid.
        TypeError: `changes` contains an unknown name.
    """
    loaded_settings = read_settings(app.conf, {**os.environ, "A2A_STORE_URL": store_url}, app.namespace)
    simulated_values: dict[str, Any] = {
        "store_url": store_url,
        "key_prefix": prefix,
        "store_wait_replicas": 0,
        "redispatch_after": 1.0,
        "archive_url": None,
        "archive_retention": None,
        "blob_url": None,
        "public_url": None,
        "webhook_consent": False,
        "grpc_port": None,
        "ui": False,
        "operators": (),
        "allowed_hosts": (),
        "cors_origins": (),
        **{f.name: default_of(f.name) for f in fields(Settings) if f.name.startswith("auth_")},
        "auth_identity_header": OWNER_HEADER if owner else None,
        "auth_proxy_networks": ("127.0.0.0/8",) if owner else (),
    }
    names = {name.removeprefix(CONF_PREFIX): value for name, value in changes.items()}
    return LoadedSettings(replace(loaded_settings.settings, **simulated_values | names), loaded_settings.sources)
