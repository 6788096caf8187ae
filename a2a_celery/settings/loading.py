"""Loading of the settings from the Celery configuration, the environment and secret files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from ..errors import ConfigError
from . import CONF_PREFIX, ENV_PREFIX, FILE_SUFFIX, VALUE_TYPES, Settings
from .urls import (
    BROKER_READ_VARIABLE,
    BROKER_VARIABLE,
    BROKER_WRITE_VARIABLE,
    RESULTS_VARIABLE,
    SENTINEL_FORM,
    UNENCODED,
    is_broker_url,
    is_redis_url,
    is_sentinel_url,
    store_url_mistake,
    with_sentinel_options,
)

IN_ENVIRONMENT = " in the environment"
AUTH_PREFIX = f"{ENV_PREFIX}AUTH_"
IN_CONFIGURATION = " in the Celery configuration"

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_BESIDE = (
    (RESULTS_VARIABLE, "result_backend", "result_backend_transport_options", "redis_backend_use_ssl"),
    (BROKER_VARIABLE, "broker_url", "broker_transport_options", "broker_use_ssl"),
)
"""Celery settings that may contain the URL of the store: the variable, the configuration key, and the keys of the
options and of TLS."""


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
    variables = with_files(environ)
    types = get_type_hints(Settings)
    values, sources = _from_configuration(conf, namespace)
    for f in fields(Settings):
        variable = ENV_PREFIX + f.name.upper()
        if variable in variables:
            values[f.name] = _read(f.name, variables[variable], types[f.name])
            sources[f.name] = f"{variable if variable in environ else variable + FILE_SUFFIX}{IN_ENVIRONMENT}"
    _require_effect(conf, namespace, sources)
    if not values.get("store_url"):
        values["store_url"], sources["store_url"] = _store_beside(conf, environ, namespace)
    settings = Settings(**values)
    _require_broker_urls(conf, environ)
    return LoadedSettings(settings, sources)


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


def _from_configuration(conf: Mapping[str, Any], namespace: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for f in fields(Settings):
        try:
            values[f.name] = conf[CONF_PREFIX + f.name]
        except KeyError:
            continue
        sources[f.name] = source_of(CONF_PREFIX + f.name, conf, namespace)
    return values, sources


def _require_effect(conf: Mapping[str, Any], namespace: str | None, sources: Mapping[str, str]) -> None:
    """Refuse configuration keys that look like settings but have no effect.

    A known name in an unused spelling is allowed if another source sets the setting.
    """
    prefix = namespace.rstrip("_") + "_" if namespace else ""
    names = {f.name for f in fields(Settings)}
    for key in map(str, list(conf)):  # a Celery configuration is a chain of maps instead of a dict
        is_inside = bool(prefix) and key.startswith(prefix)
        name = key.removeprefix(prefix).lower()
        if not name.startswith(CONF_PREFIX):
            continue
        name = name.removeprefix(CONF_PREFIX)
        right = spellings(CONF_PREFIX + name, namespace)
        if name not in names:
            if is_inside or key in right:
                similar = get_close_matches(name, names, 1)
                keys = [spellings(CONF_PREFIX + setting, namespace)[0] for setting in similar or sorted(names)]
                known = ", ".join(keys)
                hint = f"did you mean {known}?" if similar else f"known: {known}"
                raise ConfigError(f"{key} is not a setting of this version; {hint}")
        elif key not in right and name not in sources:
            raise ConfigError(f"{key}{IN_CONFIGURATION} is not read: rename it to {right[0]}")


MISSPELLED = 0.8
"""Similarity of an unknown variable to a setting at which the variable is refused. Less similar variables are allowed,
because Kubernetes sets variables such as ``A2A_STORE_SERVICE_HOST`` for its Services."""


def _require_valid_variables(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like settings but have no effect, and empty variables of authentication settings.

    For example, a gateway with ``A2A_AUTH_API_KEY`` instead of ``A2A_AUTH_API_KEYS`` would serve every client.
    """
    is_secret = {ENV_PREFIX + f.name.upper(): not f.repr for f in fields(Settings)}
    names = [variable.removeprefix(ENV_PREFIX) for variable in is_secret]
    for variable in environ:
        plain = variable.removesuffix(FILE_SUFFIX)
        suffix = variable.removeprefix(plain)
        if variable.startswith(AUTH_PREFIX) and plain in is_secret and not environ[variable].strip():
            raise ConfigError(f"{variable} is empty: set it, or remove the variable")
        if not variable.startswith(ENV_PREFIX) or variable in is_secret or is_secret.get(plain):
            continue
        if plain in is_secret:
            hint = f"set {plain}, because only secrets are read from files"
        elif similar := get_close_matches(plain.removeprefix(ENV_PREFIX), names, 1, MISSPELLED):
            hint = f"did you mean {ENV_PREFIX}{similar[0]}{suffix}?"
        else:
            continue
        raise ConfigError(f"{variable}{IN_ENVIRONMENT} is not a setting of this version; {hint}")


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the secrets from the files of variables such as ``A2A_SECRET_KEY_FILE``.

    Raises:
        ConfigError: A file is unreadable or empty, or the variable without ``_FILE`` is also set.
    """
    variables = dict(environ)
    for name in (ENV_PREFIX + f.name.upper() for f in fields(Settings) if not f.repr):
        path = variables.pop(name + FILE_SUFFIX, "")
        if not path:
            continue
        if name in variables:
            raise ConfigError(f"both {name} and {name}{FILE_SUFFIX} are set: leave one out")
        variables[name] = _content(name + FILE_SUFFIX, path)
    return variables


def _read(name: str, text: str, annotation: Any) -> Any:
    optional = type(None) in getattr(annotation, "__args__", ())
    if optional and text.strip().lower() in ("", "none"):
        return None
    if Sequence[str] in (annotation, *getattr(annotation, "__args__", ())):
        return tuple(text.split())
    if annotation is bool:
        if text.strip().lower() not in _WORDS:
            raise ConfigError(f"{ENV_PREFIX}{name.upper()} = {text!r}: must be one of {', '.join(_WORDS)}")
        return _WORDS[text.strip().lower()]
    kind = next(t for t in (int, float, str) if t is annotation or t in getattr(annotation, "__args__", ()))
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{ENV_PREFIX}{name.upper()} = {text!r}: must be {VALUE_TYPES[kind][0]}") from None


def _content(variable: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as e:
        raise ConfigError(f"{variable} = {path}: {os.strerror(e.errno or 0)}") from e
    except UnicodeDecodeError:
        raise ConfigError(f"{variable} = {path}: the file is not UTF-8 text") from None
    if not text:
        raise ConfigError(f"{variable} = {path}: the file is empty")
    return text


def _require_broker_urls(conf: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Check that kombu can parse the URLs of the broker and the result backend, because kombu's error contains a part
    of the password."""
    for variable, key in (
        (RESULTS_VARIABLE, "result_backend"),
        (BROKER_VARIABLE, "broker_url"),
        (BROKER_READ_VARIABLE, "broker_read_url"),
        (BROKER_WRITE_VARIABLE, "broker_write_url"),
    ):
        url = str(environ.get(variable) or conf.get(key) or "")
        if not is_broker_url(url):
            raise ConfigError(f"{variable if environ.get(variable) else key} = …: {UNENCODED}")


def _store_beside(conf: Mapping[str, Any], environ: Mapping[str, str], namespace: str | None) -> tuple[str, str]:
    """Return the Redis URL of the result backend or of the broker, and the source of the URL.

    Celery's environment variables take precedence over its configuration. A supported Redis deployment takes precedence
    over an unsupported deployment, which `Settings` refuses.
    """
    urls: list[tuple[str, str]] = []
    for variable, key, options, tls in _BESIDE:
        url = str(environ.get(variable) or conf.get(key) or "")
        if is_sentinel_url(url):
            url = with_sentinel_options(url, conf.get(options) or {})
            if conf.get(tls) and not store_url_mistake(url):
                raise ConfigError(
                    f"a2a_store_url is not set, and {tls} cannot be converted to a URL: "
                    f"set A2A_STORE_URL={SENTINEL_FORM.replace('sentinel:', 'sentinels:')}"
                )
        if is_redis_url(url):
            source = f"{variable}{IN_ENVIRONMENT}" if environ.get(variable) else source_of(key, conf, namespace)
            urls.append((url, source))
    if urls:
        return next((candidate for candidate in urls if not store_url_mistake(candidate[0])), urls[0])
    raise ConfigError(
        "a2a_store_url is not set, and neither the result backend nor the broker is a Redis server: "
        f"set A2A_STORE_URL=redis://host:6379/0, or {spellings('a2a_store_url', namespace)[0]}{IN_CONFIGURATION}"
    )
