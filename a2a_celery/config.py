"""Settings: frozen, checked when they are made, each with its unit and default.

A setting is ``a2a_lease_ttl`` in the Celery configuration and ``A2A_LEASE_TTL`` in the environment, which wins, so
that one image runs everywhere; a secret may be in a file that ``A2A_SECRET_KEY_FILE`` names. Seconds unless the name
says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from .databases import ARCHIVE_RULE, is_archive_url
from .errors import ConfigError
from .kinds import KINDS, are_networks, is_a
from .store_urls import store_url_mistake
from .telemetry.logs import FORMATS

CONF_PREFIX = "a2a_"
ENV_PREFIX = "A2A_"
FILE_SUFFIX = "_FILE"

DEFAULT_KEY_PREFIX = "a2a"

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A header's name, or the word for a scheme of authentication. Source: RFC 9110 5.6.2."""

LIMITS_IN_WHOLE = ("owner_request_burst", "owner_max_concurrent_tasks", "owner_max_waiting_tasks", "agent_max_queue")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one deployment of a2a_celery behaves. The same values belong in gateways, workers and watchers.

    Raises:
        ConfigError: a value is out of range or of the wrong kind; names the field.
    """

    store_url: str = field(default="", repr=False)
    """The Redis or Valkey that holds the tasks; default: the result backend or the broker, if that is one."""

    key_prefix: str = field(default=DEFAULT_KEY_PREFIX)
    """The first part of every key in the store; deployments that share a Redis differ in it."""

    public_url: str | None = field(default=None)
    """Where clients reach the gateway; fills the interfaces of cards that name none.
    None: the address of the request."""

    grpc_port: int | None = field(default=None)
    """The port each gateway process serves gRPC on. None: no gRPC."""

    grpc_host: str = field(default="127.0.0.1")
    """The address gRPC is served on; ``celery a2a gateway --host`` sets it too."""

    grpc_public_address: str | None = field(default=None)
    """``host:port`` of the gRPC interface in the cards. None: the cards name no gRPC interface."""

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
    """How long an ended task, its log and its place in the lists are kept in the store; whole seconds."""

    archive_url: str | None = field(default=None, repr=False)
    """The SQL database that ended tasks go to after `retention`, as SQLAlchemy writes it, with an asynchronous driver:
    ``postgresql+asyncpg://…``. None: they are forgotten."""

    archive_retention: int | None = field(default=None)
    """How long after its end a task is kept there, more than `retention`; whole seconds. None: for ever."""

    redispatch_after: float = field(default=60.0)
    """Seconds after which a run that was published again, or that a busy worker has fetched, is published once more.

    Each further wait is twice as long. No run is published while its queue may still hold its message."""

    max_request_bytes: int = field(default=10 * 1024 * 1024)
    """The largest request body the gateway reads, in bytes."""

    owner_requests_per_second: float | None = field(default=None)
    """How many requests an owner, a tenant's user, may make in a second on average. None: any number."""

    owner_request_burst: int | None = field(default=None)
    """How many of them may come at once, after a rest. None: those of one second, one at least."""

    owner_max_concurrent_tasks: int | None = field(default=None)
    """How many tasks of an owner may be SUBMITTED or WORKING at a time; so never more of them run. None: any number."""

    owner_max_waiting_tasks: int | None = field(default=None)
    """How many tasks of an owner may wait for a worker, that is, be SUBMITTED, at a time. None: any number."""

    agent_max_queue: int | None = field(default=None)
    """How many runs of one agent, whoever's they are, may wait for a worker at a time. None: any number."""

    session_max_bytes: int = field(default=256 * 1024)
    """How large the state of an agent's session may be, in bytes of JSON."""

    secret_key: str | Sequence[str] | None = field(default=None, repr=False)
    """What webhooks' credentials and sessions are encrypted with in the store, and webhooks' signatures made from; 32
    characters or more. Several, in the environment with spaces between: the first is used, the others still open what
    they sealed. None: no push notifications, and sessions in clear."""

    blob_url: str | None = field(default=None, repr=False)
    """Where parts of messages and artifacts that are too large for Redis are kept, as fsspec reads it: ``s3://bucket/a2a``,
    ``file:///srv/a2a``. None: they are kept in Redis."""

    blob_threshold: int = field(default=256 * 1024)
    """A part of more bytes than this goes to `blob_url`."""

    allow_networks: Sequence[str] = field(default=())
    """Private networks that webhooks may be in, such as ``10.1.0.0/16``; in the environment with spaces between."""

    ui: bool = field(default=False)
    """Whether gateways serve the operator's page at ``/ui/``."""

    auth_jwks_url: str | None = field(default=None)
    """Where the public keys of bearer tokens are: the ``jwks_uri`` of their issuer. None: see `auth_jwt_key`."""

    auth_jwt_key: str | None = field(default=None, repr=False)
    """In place of `auth_jwks_url`, the key itself: a shared secret, a public key as PEM, or a JWK Set as JSON."""

    auth_jwt_algorithms: Sequence[str] = field(default=())
    """How bearer tokens may be signed, such as ``RS256``: no other way is believed. Needed with either of the two."""

    auth_jwt_issuer: str | None = field(default=None)
    """The ``iss`` of every bearer token. Needed with either of the two."""

    auth_jwt_audience: Sequence[str] = field(default=())
    """What bearer tokens are for: each has one of these in its ``aud``. Needed with either of the two."""

    auth_jwt_owner_claim: str = field(default="sub")
    """The claim of a bearer token that says whose tasks they are."""

    auth_jwt_tenants_claim: str | None = field(default=None)
    """The claim that lists the tenants which the owner may use. None: every tenant."""

    auth_api_keys: str | Sequence[str] | None = field(default=None, repr=False)
    """The API keys that are known, each as ``owner:sha256:<hash>``, or with ``:tenant,tenant`` behind that; in the
    environment with spaces between. An owner may have several. None: no API keys."""

    auth_api_key_header: str = field(default="X-API-Key")
    """The header, or gRPC metadata, of API keys."""

    auth_identity_header: str | None = field(default=None)
    """The header in which a proxy says whose client certificate it has verified. None: no such header is believed."""

    auth_proxy_networks: Sequence[str] = field(default=())
    """The networks that proxies are in which `auth_identity_header` is believed from; in the environment with spaces
    between."""

    uvloop: bool = field(default=True)
    """Whether gateways, watchers and the runs of a worker use uvloop where it is installed (the extra ``fast``). False:
    never, for agents whose libraries need asyncio's own event loop, as nest_asyncio does."""

    log_format: str = field(default="text")
    """How processes write their log lines: ``text``, or ``json``, an object a line, with stable actions and ids."""

    def __post_init__(self) -> None:
        for name, wanted in get_type_hints(Settings).items():
            self._require(name, is_a(getattr(self, name), wanted), f"must be {KINDS[wanted]}")
        for name in ("lease_ttl", "cancel_grace", "redispatch_after"):
            self._require(name, getattr(self, name) > 0, "must be more than 0 seconds")
        self._require(
            "input_timeout", self.input_timeout is None or self.input_timeout > 0, "must be more than 0 seconds"
        )
        self._require("first_event_hold", self.first_event_hold >= 0, "must be 0 seconds or more")
        self._require("retention", self.retention >= 1, "must be at least 1 second")
        self._require("max_request_bytes", self.max_request_bytes >= 1024, "must be at least 1024 bytes")
        self._require("session_max_bytes", self.session_max_bytes >= 2, "must be at least 2 bytes")
        self._require("blob_threshold", self.blob_threshold >= 1024, "must be at least 1024 bytes")
        self._require(
            "blob_url",
            self.blob_url is None or "://" in self.blob_url,
            "must be a URL, such as s3://bucket/folder or file:///folder",
        )
        rate = self.owner_requests_per_second
        self._require("owner_requests_per_second", rate is None or 0 < rate <= 1e6, "must be more than 0, or None")
        for name in LIMITS_IN_WHOLE:
            self._require(name, getattr(self, name) is None or getattr(self, name) >= 1, "must be at least 1, or None")
        alone = self.owner_request_burst is not None and rate is None
        self._require("owner_request_burst", not alone, "needs a2a_owner_requests_per_second")
        self._require("key_prefix", bool(self.key_prefix) and "{" not in self.key_prefix, "must be a word without '{'")
        self._require(
            "archive_url",
            self.archive_url is None or is_archive_url(self.archive_url),
            f"must begin with {ARCHIVE_RULE}",
        )
        kept = self.archive_retention
        self._require("archive_retention", kept is None or kept > self.retention, "must be more than a2a_retention")
        for f in fields(self):  # a list would make the settings mutable
            if isinstance(getattr(self, f.name), list):
                object.__setattr__(self, f.name, tuple(getattr(self, f.name)))
        long_enough = self.secret_key is None or (self.secret_keys and all(len(key) >= 32 for key in self.secret_keys))
        self._require(
            "secret_key", bool(long_enough), "must be 32 characters or more, such as `openssl rand -hex 32` gives"
        )
        self._require("log_format", self.log_format in FORMATS, f"must be {' or '.join(FORMATS)}")
        for name in ("allow_networks", "auth_proxy_networks"):
            self._require(name, are_networks(getattr(self, name)), "must be networks, such as 10.1.0.0/16")
        for name in ("auth_api_key_header", "auth_identity_header"):
            given = getattr(self, name)
            self._require(name, given is None or TOKEN.fullmatch(given) is not None, "must be the name of a header")
        if self.grpc_port is not None:
            self._require("grpc_port", 1 <= self.grpc_port <= 65535, "must be a port, 1 to 65535")
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            usable = parts.scheme in ("http", "https") and bool(parts.netloc)
            self._require("public_url", usable, "must begin with http:// or https:// and name a host")
        if self.store_url:
            mistake = store_url_mistake(self.store_url)
            self._require("store_url", not mistake, mistake)

    @property
    def secret_keys(self) -> tuple[bytes, ...]:
        """`secret_key`, the one that is used first; empty for None."""
        if self.secret_key is None:
            return ()
        keys = (self.secret_key,) if isinstance(self.secret_key, str) else self.secret_key
        return tuple(key.encode() for key in keys)

    @property
    def blob_place(self) -> str | None:
        """`blob_url` as people may see it: without user, password and query."""
        if self.blob_url is None:
            return None
        parts = urlsplit(self.blob_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def api_keys(self) -> tuple[str, ...]:
        """`auth_api_keys`, one by one; empty for None."""
        if isinstance(self.auth_api_keys, str):
            return tuple(self.auth_api_keys.split())
        return tuple(self.auth_api_keys or ())

    @property
    def push_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`allow_networks`, read."""
        return tuple(ip_network(network) for network in self.allow_networks)

    def _require(self, name: str, fine: bool, rule: str) -> None:
        if not fine:
            secret = any(f.name == name and not f.repr for f in fields(self))  # a URL may hold a password
            shown = "…" if secret else repr(getattr(self, name))
            raise ConfigError(f"{CONF_PREFIX}{name} = {shown}: {rule}")


def shown(settings: Settings) -> dict[str, Any]:
    """The settings that hold no secret, by name: for people, and to compare processes by."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.repr}
    values["blob_url"] = settings.blob_place
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }  # as JSON has it


def default_of(name: str) -> Any:
    """The default of the setting `name`, for a page that lists them."""
    found = next(f for f in fields(Settings) if f.name == name)
    return None if found.default is MISSING else found.default
