"""Settings: frozen, checked when they are made, each with its unit and default.

A setting is ``a2a_lease_ttl`` in the Celery configuration and ``A2A_LEASE_TTL`` in the environment, which wins, so
that one image runs everywhere; a secret may be in a file that ``A2A_SECRET_KEY_FILE`` names. Seconds unless the name
says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from ..crypto.webhook_keys import MAX_KEYS, private_key_bytes, public_key_bytes
from ..errors import ConfigError
from ..telemetry.logs import FORMATS
from .urls import ARCHIVE_RULE, is_archive_url, store_url_mistake

CONF_PREFIX = "a2a_"
ENV_PREFIX = "A2A_"
FILE_SUFFIX = "_FILE"

DEFAULT_KEY_PREFIX = "a2a"

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A header's name, or the word for a scheme of authentication. Source: RFC 9110 5.6.2."""

VALUE_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a number, and finite",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value),
    ),
    Sequence[str]: (
        "a list of texts",
        lambda value: isinstance(value, list | tuple) and all(isinstance(item, str) for item in value),
    ),
    NoneType: ("None", lambda value: value is None),
}
"""Types of the settings, each with its name in error messages and its check."""


class Rule(NamedTuple):
    """Rule for the value of a setting. None is always valid."""

    is_met: Callable[[Any], object]
    text: str


def at_least(minimum: int, unit: str) -> Rule:
    """Return the rule for a value with a minimum."""
    return Rule(lambda value: value >= minimum, f"must be at least {minimum}{unit}")


def _are_networks(texts: Sequence[str]) -> bool:
    try:
        return all(ip_network(text) is not None for text in texts)
    except ValueError:
        return False


def _is_web_url(text: str) -> bool:
    url = urlsplit(text)
    return url.scheme in ("http", "https") and bool(url.netloc)


MORE_THAN_0_SECONDS = Rule(lambda value: value > 0, "must be more than 0 seconds")
AT_LEAST_1 = at_least(1, ", or None")
NETWORKS = Rule(_are_networks, "must be networks, such as 10.1.0.0/16")
WEB_URL = Rule(_is_web_url, "must begin with http:// or https:// and name a host")
BLOB_URL = Rule(lambda url: "://" in url, "must be a URL, such as s3://bucket/folder or file:///folder")
HOST_NAMES = Rule(lambda hosts: not set("/: ") & set("".join(hosts)), "must be names of hosts, without scheme and port")
ORIGINS = Rule(
    lambda texts: all(_is_web_url(text) and not urlsplit(text).path for text in texts),
    "must be origins, such as https://chat.example.com",
)
HEADER = Rule(TOKEN.fullmatch, "must be the name of a header")


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration of a deployment. Gateways, workers and watchers need the same values.

    Raises:
        ConfigError: a value is out of range or of the wrong kind; names the field.
    """

    store_url: str = field(default="", repr=False)
    """The Redis or Valkey that holds the tasks; default: the result backend or the broker, if that is one."""

    key_prefix: Annotated[str, Rule(lambda text: text and "{" not in text, "must be a word without '{'")] = (
        DEFAULT_KEY_PREFIX
    )
    """The first part of every key in the store; deployments that share a Redis differ in it."""

    public_url: Annotated[str | None, WEB_URL] = None
    """Where clients reach the gateway; fills the interfaces of cards that name none.
    None: the address of the request."""

    allowed_hosts: Annotated[Sequence[str], HOST_NAMES] = ()
    """Names in the ``Host`` header that a gateway without authentication serves beside that of `public_url`, ``*`` for
    any. IP addresses, names without a dot and names of private networks (``.local``, ``.internal``) need no entry."""

    trusted_origins: Annotated[Sequence[str], ORIGINS] = ()
    """Origins of web pages, such as ``https://chat.example.com``, that may send requests to a gateway without
    authentication. Pages of the gateway itself need no entry."""

    grpc_port: Annotated[int | None, Rule(lambda port: 1 <= port <= 65535, "must be a port, 1 to 65535")] = None
    """The port each gateway process serves gRPC on. None: no gRPC."""

    grpc_host: str = "127.0.0.1"
    """The address gRPC is served on; ``celery a2a gateway --host`` sets it too."""

    grpc_without_authentication: bool = False
    """Whether `a2a.asgi()` serves gRPC to everybody if none of the ``auth_`` settings is there. An application around
    it, which may authenticate callers, sees no gRPC."""

    grpc_public_address: str | None = None
    """``host:port`` of the gRPC interface in the cards. None: the cards name no gRPC interface."""

    lease_ttl: Annotated[float, MORE_THAN_0_SECONDS] = 15.0
    """How long a run belongs to a worker that is not heard of; renewed three times in that time."""

    cancel_grace: Annotated[float, MORE_THAN_0_SECONDS] = 5.0
    """How long a cancelled agent may take to stop; a CancelTask waits for it this long and a moment."""

    first_event_hold: Annotated[float, Rule(lambda value: value >= 0, "must be 0 seconds or more")] = 0.5
    """How long an executor's run may stay silent before its task shows WORKING, and a stream its task: in that time
    an agent may still answer with a message alone. 0: never wait, such an answer completes the task instead."""

    input_timeout: Annotated[float | None, MORE_THAN_0_SECONDS] = 7 * 24 * 3600.0
    """How long a task waits for its client in INPUT_REQUIRED or AUTH_REQUIRED before it is FAILED. None: for ever."""

    retention: Annotated[int, at_least(1, " second")] = 7 * 24 * 3600
    """How long an ended task, its log and its place in the lists are kept in the store; whole seconds."""

    archive_url: Annotated[str | None, Rule(is_archive_url, f"must begin with {ARCHIVE_RULE}")] = field(
        default=None, repr=False
    )
    """The SQL database that ended tasks go to after `retention`, as SQLAlchemy writes it, with an asynchronous driver:
    ``postgresql+asyncpg://…``. None: they are forgotten."""

    archive_retention: int | None = None
    """How long after its end a task is kept there, more than `retention`; whole seconds. None: for ever."""

    redispatch_after: Annotated[float, MORE_THAN_0_SECONDS] = 60.0
    """Seconds after which a run that was published again, or that a busy worker has fetched, is published once more.

    Each further wait is twice as long. No run is published while its queue may still hold its message."""

    max_request_bytes: Annotated[int, at_least(1024, " bytes")] = 10 * 1024 * 1024
    """The largest request body the gateway reads, in bytes."""

    task_max_bytes: Annotated[int | None, AT_LEAST_1] = 64 * 1024 * 1024
    """How many bytes a task may have in the store when a further message to it is accepted. None: any number."""

    owner_requests_per_second: Annotated[
        float | None, Rule(lambda rate: 0 < rate <= 1e6, "must be more than 0, or None")
    ] = None
    """How many requests an owner, a user in all tenants, may make in a second on average. None: any number."""

    owner_request_burst: Annotated[int | None, AT_LEAST_1] = None
    """How many of them may come at once, after a rest. None: those of one second, one at least."""

    owner_max_concurrent_tasks: Annotated[int | None, AT_LEAST_1] = None
    """How many tasks of an owner may be SUBMITTED or WORKING at a time; so never more of them run. None: any number."""

    owner_max_waiting_tasks: Annotated[int | None, AT_LEAST_1] = None
    """How many tasks of an owner may wait for a worker, that is, be SUBMITTED, at a time. None: any number."""

    owner_max_paused_tasks: Annotated[int | None, AT_LEAST_1] = None
    """How many tasks of an owner may wait for their client, that is, be INPUT_REQUIRED or AUTH_REQUIRED, when a new one
    comes. None: any number."""

    owner_max_webhooks: Annotated[int | None, AT_LEAST_1] = None
    """How many webhooks the tasks of an owner may have, ended ones too while they are kept. None: any number."""

    owner_max_streams: Annotated[int | None, AT_LEAST_1] = None
    """How many streams of an owner one gateway process may have open. None: any number."""

    agent_max_queue: Annotated[int | None, AT_LEAST_1] = None
    """How many runs of one agent, whoever's they are, may wait for a worker at a time. None: any number."""

    owner_max_stored_bytes: Annotated[int | None, AT_LEAST_1] = None
    """How many bytes of an owner's tasks the store may keep when a message comes, with the message; ended tasks count
    until they leave the store. None: any number."""

    store_max_bytes: Annotated[int | None, AT_LEAST_1] = None
    """How many bytes of all tasks together, likewise. None: any number."""

    store_watermark: Annotated[
        float | None, Rule(lambda share: 0 <= share < 1, "must be 0 or more and less than 1, or None")
    ] = 0.9
    """The share of the store's ``maxmemory``, 0 to 1, above which no message is accepted, so that what runs can end.
    None or 0: none. A server without ``maxmemory``, or one that evicts keys, has none."""

    store_wait_replicas: Annotated[int, Rule(lambda value: value >= 0, "must be 0 or more")] = 0
    """How many replicas of the store confirm each accepted message and each end of a task, within a second. A message
    that they do not confirm is refused; an end counts, and is logged. 0: no write waits for a replica."""

    session_max_bytes: Annotated[int, at_least(2, " bytes")] = 256 * 1024
    """How large the state of an agent's session may be, in bytes of JSON."""

    secret_key: str | Sequence[str] | None = field(default=None, repr=False)
    """What webhooks' credentials and sessions are encrypted with in the store, and webhooks' signatures made from; 32
    characters or more. Several, in the environment with spaces between: the first is used, the others still open what
    they sealed. None: no push notifications, and sessions in clear."""

    webhook_private_key: str | Sequence[str] | None = field(default=None, repr=False)
    """The Ed25519 key, ``whsk_…``, that posts to webhooks are signed with beside HMAC. Several, in the environment with
    spaces between: the first signs, and gateways publish the public keys of all. None: HMAC alone."""

    webhook_public_keys: Sequence[str] = ()
    """Further public keys, ``whpk_…``, that gateways publish: those of private keys that only watchers have."""

    blob_url: Annotated[str | None, BLOB_URL] = field(default=None, repr=False)
    """Where parts of messages and artifacts that are too large for Redis are kept, as fsspec reads it: ``s3://bucket/a2a``,
    ``file:///srv/a2a``. None: they are kept in Redis."""

    blob_threshold: Annotated[int, at_least(1024, " bytes")] = 256 * 1024
    """A part of more bytes than this goes to `blob_url`."""

    allow_networks: Annotated[Sequence[str], NETWORKS] = ()
    """Private networks that webhooks may be in, such as ``10.1.0.0/16``; in the environment with spaces between."""

    webhook_bytes_per_hour: Annotated[int | None, at_least(1024 * 1024, " bytes, or None")] = 1024**3
    """How many bytes are posted to webhooks at one host for one owner in an hour; more waits. None: any number."""

    webhook_consent: bool = False
    """Whether gateways ask a receiver for its consent before they take a webhook that leads to it, by ``OPTIONS`` with
    the host of `public_url` in ``WebHook-Request-Origin``."""

    ui: bool = False
    """Whether gateways serve the operator's page at ``/ui/``."""

    auth_jwks_url: str | None = None
    """Where the public keys of bearer tokens are: the ``jwks_uri`` of their issuer. None: see `auth_jwt_key`."""

    auth_jwt_key: str | None = field(default=None, repr=False)
    """In place of `auth_jwks_url`, the key itself: a shared secret, a public key as PEM, or a JWK Set as JSON."""

    auth_jwt_algorithms: Sequence[str] = ()
    """How bearer tokens may be signed, such as ``RS256``: no other way is believed. Needed with either of the two."""

    auth_jwt_issuer: str | None = None
    """The ``iss`` of every bearer token. Needed with either of the two."""

    auth_jwt_audience: Sequence[str] = ()
    """What bearer tokens are for: each has one of these in its ``aud``. Needed with either of the two."""

    auth_jwt_owner_claim: str = "sub"
    """The claim of a bearer token that says whose tasks they are."""

    auth_jwt_tenants_claim: str | None = None
    """The claim that lists the tenants which the owner may use. None: every tenant."""

    auth_api_keys: str | Sequence[str] | None = field(default=None, repr=False)
    """The API keys that are known, each as ``owner:sha256:<hash>``, or with ``:tenant,tenant`` behind that; in the
    environment with spaces between. An owner may have several. None: no API keys."""

    auth_api_key_header: Annotated[str, HEADER] = "X-API-Key"
    """The header, or gRPC metadata, of API keys."""

    auth_identity_header: Annotated[str | None, HEADER] = None
    """The header in which a proxy says whose client certificate it has verified. None: no such header is believed."""

    auth_proxy_networks: Annotated[Sequence[str], NETWORKS] = ()
    """The networks that proxies are in which `auth_identity_header` is believed from; in the environment with spaces
    between."""

    uvloop: bool = True
    """Whether gateways, watchers and the runs of a worker use uvloop where it is installed (the extra ``fast``). False:
    never, for agents whose libraries need asyncio's own event loop, as nest_asyncio does."""

    preload_agents: bool = True
    """Whether a worker's processes import the agents given by name when they start. False: when a first message comes.
    Green pools (gevent, eventlet) import them then in either case."""

    log_format: Annotated[str, Rule(FORMATS.__contains__, f"must be {' or '.join(FORMATS)}")] = "text"
    """How processes write their log lines: ``text``, or ``json``, an object a line, with stable actions and ids."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Settings, include_extras=True).items():
            self._check(name, *(get_args(hint) if get_origin(hint) is Annotated else (hint,)))
        if self.store_url:
            mistake = store_url_mistake(self.store_url)
            self._require("store_url", not mistake, mistake)
        has_rate = self.owner_request_burst is None or self.owner_requests_per_second is not None
        self._require("owner_request_burst", has_rate, "needs a2a_owner_requests_per_second")
        is_longer = self.archive_retention is None or self.archive_retention > self.retention
        self._require("archive_retention", is_longer, "must be more than a2a_retention")
        is_long = self.secret_key is None or (self.secret_keys and all(len(key) >= 32 for key in self.secret_keys))
        self._require(
            "secret_key", bool(is_long), "must be 32 characters or more, such as `openssl rand -hex 32` gives"
        )
        has_name = not self.webhook_consent or self.public_url is not None
        self._require("webhook_consent", has_name, "needs a2a_public_url: its host is who asks for consent")
        self._require_signing_keys()

    def _check(self, name: str, declared: Any, *rules: Rule) -> None:
        value = getattr(self, name)
        types = [VALUE_TYPES[each] for each in (get_args(declared) if isinstance(declared, UnionType) else (declared,))]
        texts = [text for text, _ in types]
        wanted = f"{', '.join(texts[:-1])}, or {texts[-1]}" if texts[1:] else texts[0]
        self._require(name, any(has_type(value) for _, has_type in types), f"must be {wanted}")
        if isinstance(value, list):  # a list would make the settings mutable
            object.__setattr__(self, name, tuple(value))
        for rule in rules:
            self._require(name, value is None or bool(rule.is_met(value)), rule.text)

    @property
    def secret_keys(self) -> tuple[bytes, ...]:
        """`secret_key`, the one that is used first; empty for None."""
        if self.secret_key is None:
            return ()
        keys = (self.secret_key,) if isinstance(self.secret_key, str) else self.secret_key
        return tuple(key.encode() for key in keys)

    def _require_signing_keys(self) -> None:
        """Check the keys of webhooks. No error repeats a key: one may be in the wrong setting."""
        readers = {"webhook_private_key": private_key_bytes, "webhook_public_keys": public_key_bytes}
        for name, read in readers.items():
            keys = self.webhook_private_keys if name == "webhook_private_key" else self.webhook_public_keys
            try:
                for key in keys:
                    read(key)
            except ValueError as e:
                raise ConfigError(f"{CONF_PREFIX}{name}: {e}") from None
            if len(keys) > MAX_KEYS:
                raise ConfigError(f"{CONF_PREFIX}{name} has {len(keys)} keys: {MAX_KEYS} at most")
        given = self.webhook_private_key is not None
        self._require("webhook_private_key", not given or bool(self.webhook_private_keys), "must be a key, or None")
        self._require(
            "webhook_private_key",
            not given or self.secret_key is not None,
            "needs a2a_secret_key: without it there are no webhooks",
        )

    @property
    def webhook_private_keys(self) -> tuple[str, ...]:
        """`webhook_private_key`, one by one; empty for None."""
        if isinstance(self.webhook_private_key, str):
            return tuple(self.webhook_private_key.split())
        return tuple(self.webhook_private_key or ())

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
            secret = secret or name == "webhook_public_keys"  # a private key may be there by mistake
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
