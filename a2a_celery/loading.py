"""Reading the settings of a process: from the Celery configuration, the environment, and the files that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from .config import CONF_PREFIX, ENV_PREFIX, FILE_SUFFIX, STORE_SCHEMES, Settings
from .errors import ConfigError

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load_settings(conf: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a Celery configuration and an environment.

    Raises:
        ConfigError: an unknown ``a2a_*`` key, a value that can't be read, or no Redis to keep tasks in.
    """
    environ = with_files(environ)
    types = get_type_hints(Settings)
    known = {f.name for f in fields(Settings)}
    # list(): a Celery configuration is a chain of maps, and lists more than was set
    given = {key[len(CONF_PREFIX) :]: conf[key] for key in list(conf) if str(key).startswith(CONF_PREFIX)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{CONF_PREFIX}{name} is not a setting of this version; known: {', '.join(sorted(known))}"
            )
    for f in fields(Settings):
        text = environ.get(ENV_PREFIX + f.name.upper())
        if text is not None:
            given[f.name] = _read(f.name, text, types[f.name])
    if not given.get("store_url"):
        given["store_url"] = _store_beside(conf, environ)
    return Settings(**given)


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with what is in the files that it names: such as ``A2A_SECRET_KEY_FILE``: those of secrets and URLs.

    Raises:
        ConfigError: the file can't be read or is empty, or the variable without ``_FILE`` is set too.
    """
    found = dict(environ)
    for name in (ENV_PREFIX + f.name.upper() for f in fields(Settings) if not f.repr):
        path = found.pop(name + FILE_SUFFIX, "")
        if not path:
            continue
        if name in found:
            raise ConfigError(f"both {name} and {name}{FILE_SUFFIX} are set: leave one out")
        found[name] = _content(name + FILE_SUFFIX, path)
    return found


def _read(name: str, text: str, wanted: Any) -> Any:
    optional = type(None) in getattr(wanted, "__args__", ())
    if optional and text.strip().lower() in ("", "none"):
        return None
    if Sequence[str] in (wanted, *getattr(wanted, "__args__", ())):
        return tuple(text.split())
    if wanted is bool:
        if text.strip().lower() not in _WORDS:
            raise ConfigError(f"{ENV_PREFIX}{name.upper()} = {text!r}: must be one of {', '.join(_WORDS)}")
        return _WORDS[text.strip().lower()]
    kind = next(t for t in (int, float, str) if t is wanted or t in getattr(wanted, "__args__", ()))
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{ENV_PREFIX}{name.upper()} = {text!r}: not a{'n' if kind is int else ''} {kind.__name__}"
        ) from None


def _content(variable: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as e:
        raise ConfigError(f"{variable} = {path}: {os.strerror(e.errno or 0)}") from e
    except UnicodeDecodeError:
        raise ConfigError(f"{variable} = {path}: not a text") from None
    if not text:
        raise ConfigError(f"{variable} = {path}: the file is empty")
    return text


def _store_beside(conf: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """The result backend or the broker, where that is a Redis (Celery's own variables win over its configuration)."""
    for variable, key in (("CELERY_RESULT_BACKEND", "result_backend"), ("CELERY_BROKER_URL", "broker_url")):
        url = str(environ.get(variable) or conf.get(key) or "")
        if urlsplit(url).scheme in STORE_SCHEMES:
            return url
    raise ConfigError(
        "a2a_store_url is not set, and neither the result backend nor the broker is a Redis: "
        "set A2A_STORE_URL=redis://host:6379/0"
    )
