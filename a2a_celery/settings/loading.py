"""Loading of the settings from the Celery configuration, the environment and secret files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from ..errors import ConfigError
from . import CONF_PREFIX, ENV_PREFIX, FILE_SUFFIX, REMOVED, SECRETS, VALUE_TYPES, VARIABLES, Settings, declarations
from .urls import (
    BROKER_READ_VARIABLE,
    BROKER_VARIABLE,
    BROKER_WRITE_VARIABLE,
    RESULTS_VARIABLE,
    SENTINEL_FORM,
    UNENCODED,
    is_broker_url,
    is_redis_url,
)

IN_ENVIRONMENT = " in the environment"
IN_CONFIGURATION = " in the Celery configuration"

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_NOT_SET = object()


class LoadedSettings(NamedTuple):
    """Settings of a process, and the sources of the configured settings."""

    settings: Settings
    sources: Mapping[str, str]
    """Source of each configured setting, by name of the setting: the variable in the environment, or the key in the
    Celery configuration."""


def load_settings(
    conf: Mapping[str, Any], environ: Mapping[str, str] = os.environ, namespace: str | None = None
) -> Settings:
    """Return the settings without their sources; see `read_settings`."""
    return read_settings(conf, environ, namespace).settings


def read_settings(
    conf: Mapping[str, Any], environ: Mapping[str, str] = os.environ, namespace: str | None = None
) -> LoadedSettings:
    """Read the settings from a Celery configuration and an environment. The environment takes precedence.

    Args:
        conf: Celery configuration of the app, which also finds names with the namespace.
        environ: Environment variables.
        namespace: Namespace of the app's configuration, such as CELERY in Django projects, or None.

    Raises:
        ConfigError: A name has no effect, a value is invalid, a secret file is unreadable, or no Redis server is
            configured as the store.
    """
    _require_valid_variables(environ)
    texts = with_files(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for variable, name in VARIABLES.items():
        if variable in texts:
            values[name] = _parse(variable, texts[variable], declarations()[name][0])
            sources[name] = f"{variable if variable in environ else variable + FILE_SUFFIX}{IN_ENVIRONMENT}"
        elif (value := conf.get(CONF_PREFIX + name, _NOT_SET)) is not _NOT_SET:
            values[name], sources[name] = value, source_of(CONF_PREFIX + name, conf, namespace)
    _require_valid_keys(conf, namespace, sources)
    store_url, source = _celery_store(conf, environ, namespace)
    if not values.get("store_url"):
        values["store_url"], sources["store_url"] = store_url, source
    if not values["store_url"]:
        raise ConfigError(
            "a2a_store_url is not set, and neither the result backend nor the broker is a Redis server: "
            f"set A2A_STORE_URL=redis://host:6379/0 or {SENTINEL_FORM}, or "
            f"{spellings('a2a_store_url', namespace)[0]}{IN_CONFIGURATION}"
        )
    return LoadedSettings(Settings(**values), sources)


def spellings(name: str, namespace: str | None) -> tuple[str, ...]:
    """Return the keys under which an app may configure `name`, the recommended key first.

    Source: celery.utils.collections.ConfigurationView, which derives the case of a key from the case of the namespace.
    """
    if not namespace:
        return (name,)
    prefix = namespace.rstrip("_") + "_"
    return prefix + (name.upper() if prefix.isupper() else name.lower()), name


def source_of(name: str, conf: Mapping[str, Any], namespace: str | None = None) -> str:
    """Return a description of the place where the configuration key `name` was set, for display."""
    view = getattr(conf, "data", conf)  # Celery wraps a configuration that has not been read yet
    *changes, defaults = getattr(view, "maps", [conf])  # in the order of Celery's lookup
    for mapping in changes or [defaults]:
        for key in spellings(name, namespace):
            if key in mapping:
                return f"{key}{IN_CONFIGURATION}"
    return "Celery's default"


def _require_valid_keys(conf: Mapping[str, Any], namespace: str | None, sources: Mapping[str, str]) -> None:
    """Refuse configuration keys that look like settings but have no effect.

    A known name in an unused spelling is allowed if another source sets the setting.
    """
    prefix = namespace.rstrip("_") + "_" if namespace else ""
    for key in map(str, list(conf)):  # a Celery configuration is a chain of maps instead of a dict
        full_name = key.removeprefix(prefix).lower()
        name = full_name.removeprefix(CONF_PREFIX)
        right = spellings(full_name, namespace)
        if name == full_name:
            continue
        if name in VARIABLES.values():
            if key not in right and name not in sources:
                raise ConfigError(f"{key}{IN_CONFIGURATION} is not read: rename it to {right[0]}")
        elif key in right or (prefix and key.startswith(prefix)):
            known = {other: spellings(CONF_PREFIX + other, namespace)[0] for other in VARIABLES.values()}
            hint = _hint(name, known, 0.6) or f"is not a setting of this version; known: {', '.join(known.values())}"
            raise ConfigError(f"{key}{IN_CONFIGURATION} {hint}")


MISSPELLED = 0.8
"""Similarity of an unknown variable to a setting at which the variable is refused. Less similar variables are allowed,
because Kubernetes sets variables such as ``A2A_STORE_SERVICE_HOST`` for its Services."""


def _require_valid_variables(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like settings but have no effect, and empty variables of authentication settings.

    For example, a gateway with ``A2A_AUTH_API_KEY`` instead of ``A2A_AUTH_API_KEYS`` would serve every client.
    """
    for variable in environ:
        plain = variable.removesuffix(FILE_SUFFIX)
        if plain in VARIABLES and VARIABLES[plain].startswith("auth_") and not environ[variable].strip():
            raise ConfigError(f"{variable} is empty: set it, or remove the variable")
        if not variable.startswith(ENV_PREFIX) or variable in VARIABLES or VARIABLES.get(plain) in SECRETS:
            continue
        hint = f"is not a setting of this version; set {plain}, because only secrets are read from files"
        if plain not in VARIABLES:
            known = {name: known + variable.removeprefix(plain) for known, name in VARIABLES.items()}
            hint = _hint(plain.removeprefix(ENV_PREFIX).lower(), known, MISSPELLED)
        if hint:
            raise ConfigError(f"{variable}{IN_ENVIRONMENT} {hint}")


def _hint(name: str, known: Mapping[str, str], similarity: float) -> str:
    """Return what to do about the unknown setting `name`, or "" if the name is similar to no setting in `known`."""
    if name in REMOVED:
        return f"is no longer a setting: remove it; {REMOVED[name]}"
    similar = get_close_matches(name, known, 1, similarity)
    return f"is not a setting of this version; did you mean {known[similar[0]]}?" if similar else ""


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the secrets from the files of variables such as ``A2A_SECRET_KEY_FILE``.

    Raises:
        ConfigError: A file is unreadable or empty, or the variable without ``_FILE`` is also set.
    """
    variables = dict(environ)
    for name in (variable for variable, setting in VARIABLES.items() if setting in SECRETS):
        path = variables.pop(name + FILE_SUFFIX, "")
        if not path:
            continue
        if name in variables:
            raise ConfigError(f"both {name} and {name}{FILE_SUFFIX} are set: leave one out")
        variables[name] = secret_of_file(name + FILE_SUFFIX, path)
    return variables


def _parse(variable: str, text: str, types: Sequence[Any]) -> Any:
    """Return the value of a setting with `types` that `variable` contains as `text`."""
    if NoneType in types and text.strip().lower() in ("", "none"):
        return None
    if Sequence[str] in types:
        return tuple(text.split())
    if str in types:
        return text
    try:
        return _WORDS[text.strip().lower()] if bool in types else types[0](text)
    except (KeyError, ValueError):
        rule = f"one of {', '.join(_WORDS)}" if bool in types else VALUE_TYPES[types[0]][0]
    raise ConfigError(f"{variable} = {text!r}: must be {rule}")


def secret_of_file(variable: str, path: str) -> str:
    """Return the content of the file that `variable` names, without surrounding space.

    Raises:
        ConfigError: The file is unreadable or empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except OSError as e:
        raise ConfigError(f"{variable} = {path}: {os.strerror(e.errno or 0)}") from e
    except UnicodeDecodeError:
        raise ConfigError(f"{variable} = {path}: the file is not UTF-8 text") from None
    if not text:
        raise ConfigError(f"{variable} = {path}: the file is empty")
    return text


def _celery_store(conf: Mapping[str, Any], environ: Mapping[str, str], namespace: str | None) -> tuple[str, str]:
    """Return the URL of the result backend or of the broker, whichever is a Redis server, and the source of the URL.

    Celery's environment variables take precedence over its configuration. Both texts are empty if neither is a Redis
    server.

    Raises:
        ConfigError: kombu cannot parse a URL. kombu's error would contain a part of the password.
    """
    candidates: list[tuple[str, str]] = []
    for variable, key in (
        (RESULTS_VARIABLE, "result_backend"),
        (BROKER_VARIABLE, "broker_url"),
        (BROKER_READ_VARIABLE, "broker_read_url"),
        (BROKER_WRITE_VARIABLE, "broker_write_url"),
    ):
        url = str(environ.get(variable) or conf.get(key) or "")
        if not is_broker_url(url):
            raise ConfigError(f"{variable if environ.get(variable) else key} = …: {UNENCODED}")
        if is_redis_url(url) and key in ("result_backend", "broker_url"):
            source = f"{variable}{IN_ENVIRONMENT}" if environ.get(variable) else source_of(key, conf, namespace)
            candidates.append((url, source))
    return candidates[0] if candidates else ("", "")
