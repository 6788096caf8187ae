"""Settings: frozen, checked when they are made, each with its unit and default.

A setting is ``a2a_lease_ttl`` in the Celery configuration and ``A2A_LEASE_TTL`` in the environment, which wins, so
that one image runs everywhere; a secret may be in a file that ``A2A_SECRET_KEY_FILE`` names. Seconds unless the name
says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from .errors import ConfigError
from .telemetry.logs import FORMATS

CONF_PREFIX = "a2a_"
ENV_PREFIX = "A2A_"
FILE_SUFFIX = "_FILE"

STORE_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "valkey", "valkeys")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one deployment of a2a_celery behaves. The same values belong in gateways, workers and watchers.

    Raises:
        ConfigError: a value is out of range or of the wrong kind; names the field.
    """

    store_url: str = field(default="", repr=False)
    """The Redis or Valkey that holds the tasks; default: the result backend or the broker, if that is one."""

    key_prefix: str = field(default="a2a")
    """The first part of every key in the store; deployments that share a Redis differ in it."""

    public_url: str | None = field(default=None)
    """Where clients reach the gateway; fills the interfaces of cards that name none.
    None: the address of the request."""

    grpc_port: int | None = field(default=None)
    """The port each gateway process serves gRPC on. None: no gRPC."""

    grpc_host: str = field(default="127.0.0.1")
    """The address gRPC is served on; ``celery a2a gateway --host`` sets it too."""

    grpc_public_address: str | None = field(default=None)
    """``host:port`` of the gRPC interface in the cards. None: the host of the card's other interfaces, `grpc_port`."""

    lease_ttl: float = field(default=15.0)
    """How long a run belongs to a worker that is not heard of; renewed three times in that time."""

    cancel_grace: float = field(default=5.0)
    """How long a cancelled agent may take to stop; a CancelTask waits for it this long and a moment."""

    first_event_hold: float = field(default=0.5)
    """How long an executor's run may stay silent before its task shows WORKING, and a stream its task: in that time
    an agent may still answer with a message alone. 0: never wait, such an answer completes the task instead."""

    input_timeout: float | None = field(default=None)
    """How long a task waits for its client in INPUT_REQUIRED or AUTH_REQUIRED before it is FAILED. None: for ever."""

    retention: int = field(default=7 * 24 * 3600)
    """How long an ended task, its log and its place in the lists are kept; whole seconds."""

    redispatch_after: float = field(default=60.0)
    """A run that no worker claimed is published again after this long, then after twice this long, and so on."""

    max_request_bytes: int = field(default=10 * 1024 * 1024)
    """The largest request body the gateway reads, in bytes."""

    session_max_bytes: int = field(default=256 * 1024)
    """How large the state of an agent's session may be, in bytes of JSON."""

    secret_key: str | Sequence[str] | None = field(default=None, repr=False)
    """What webhooks' credentials and sessions are encrypted with in the store, and webhooks' signatures made from; 32
    characters or more. Several, in the environment with spaces between: the first is used, the others still open what
    they sealed. None: no push notifications, and sessions in clear."""

    allow_networks: Sequence[str] = field(default=())
    """Private networks that webhooks may be in, such as ``10.1.0.0/16``; in the environment with spaces between."""

    log_format: str = field(default="text")
    """How processes write their log lines: ``text``, or ``json``, an object a line, with stable actions and ids."""

    def __post_init__(self) -> None:
        for name, wanted in get_type_hints(Settings).items():
            self._require(name, _is_a(getattr(self, name), wanted), f"must be {_KINDS[wanted]}")
        for name in ("lease_ttl", "cancel_grace", "redispatch_after"):
            self._require(name, getattr(self, name) > 0, "must be more than 0 seconds")
        self._require(
            "input_timeout", self.input_timeout is None or self.input_timeout > 0, "must be more than 0 seconds"
        )
        self._require("first_event_hold", self.first_event_hold >= 0, "must be 0 seconds or more")
        self._require("retention", self.retention >= 1, "must be at least 1 second")
        self._require("max_request_bytes", self.max_request_bytes >= 1024, "must be at least 1024 bytes")
        self._require("session_max_bytes", self.session_max_bytes >= 2, "must be at least 2 bytes")
        self._require("key_prefix", bool(self.key_prefix) and "{" not in self.key_prefix, "must be a word without '{'")
        for name in ("secret_key", "allow_networks"):  # a list would make the settings mutable
            if isinstance(getattr(self, name), Sequence) and not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        long_enough = self.secret_key is None or (self.secret_keys and all(len(key) >= 32 for key in self.secret_keys))
        self._require(
            "secret_key", bool(long_enough), "must be 32 characters or more, such as `openssl rand -hex 32` gives"
        )
        self._require("log_format", self.log_format in FORMATS, f"must be {' or '.join(FORMATS)}")
        self._require("allow_networks", _are_networks(self.allow_networks), "must be networks, such as 10.1.0.0/16")
        if self.grpc_port is not None:
            self._require("grpc_port", 1 <= self.grpc_port <= 65535, "must be a port, 1 to 65535")
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            usable = parts.scheme in ("http", "https") and bool(parts.netloc)
            self._require("public_url", usable, "must begin with http:// or https:// and name a host")
        if self.store_url:
            scheme = urlsplit(self.store_url).scheme
            self._require("store_url", scheme in STORE_SCHEMES, f"must begin with one of {', '.join(STORE_SCHEMES)}")

    @property
    def secret_keys(self) -> tuple[bytes, ...]:
        """`secret_key`, the one that is used first; empty for None."""
        if self.secret_key is None:
            return ()
        keys = (self.secret_key,) if isinstance(self.secret_key, str) else self.secret_key
        return tuple(key.encode() for key in keys)

    @property
    def push_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`allow_networks`, read."""
        return tuple(ip_network(network) for network in self.allow_networks)

    def _require(self, name: str, fine: bool, rule: str) -> None:
        if not fine:
            secret = name in ("store_url", "secret_key")  # a URL may hold a password
            shown = "…" if secret else repr(getattr(self, name))
            raise ConfigError(f"{CONF_PREFIX}{name} = {shown}: {rule}")


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
    """`environ` with what is in the files that it names: of ``A2A_SECRET_KEY_FILE`` and ``A2A_STORE_URL_FILE``.

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


def shown(settings: Settings) -> dict[str, Any]:
    """The settings that hold no secret, by name: for people, and to compare processes by."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.repr}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }  # as JSON has it


_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number, and finite",
    str | None: "a text, or None",
    int | None: "a whole number, or None",
    float | None: "a number, and finite, or None",
    Sequence[str]: "a list of texts",
    str | Sequence[str] | None: "a text, a list of texts, or None",
}


def _are_networks(texts: Sequence[str]) -> bool:
    try:
        return all(ip_network(text) is not None for text in texts)
    except ValueError:
        return False


def _is_a(value: Any, wanted: Any) -> bool:
    if value is None:
        return type(None) in getattr(wanted, "__args__", ())
    if float in (wanted, *getattr(wanted, "__args__", ())):
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if Sequence[str] in (wanted, *getattr(wanted, "__args__", ())) and not isinstance(value, str):
        return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if wanted == Sequence[str]:
        return False
    if wanted == str | Sequence[str] | None:
        return True
    return isinstance(value, wanted) and not isinstance(value, bool)


def _read(name: str, text: str, wanted: Any) -> Any:
    optional = type(None) in getattr(wanted, "__args__", ())
    if optional and text.strip().lower() in ("", "none"):
        return None
    if Sequence[str] in (wanted, *getattr(wanted, "__args__", ())):
        return tuple(text.split())
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


def default_of(name: str) -> Any:
    """The default of the setting `name`, for a page that lists them."""
    found = next(f for f in fields(Settings) if f.name == name)
    return None if found.default is MISSING else found.default
