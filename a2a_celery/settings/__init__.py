"""Immutable, validated settings, with their units and defaults.

The setting `lease_ttl` is ``a2a_lease_ttl`` in the Celery configuration and ``A2A_LEASE_TTL`` in the environment. The
environment takes precedence. A variable such as ``A2A_SECRET_KEY_FILE`` contains the path of a file with a secret.
Times are in seconds unless the name of the setting contains another unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from ..crypto.webhook_keys import MAX_KEYS, private_key_bytes
from ..errors import ConfigError
from ..telemetry.logs import FORMATS
from .urls import ARCHIVE_DRIVERS, ARCHIVE_URL, UNENCODED, is_encoded_url, is_url, store_url_mistake, url_address

CONF_PREFIX = "a2a_"
ENV_PREFIX = "A2A_"
FILE_SUFFIX = "_FILE"

DEFAULT_KEY_PREFIX = "a2a"

VALUE_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a string", lambda value: isinstance(value, str)),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: ("a finite number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    Sequence[str]: (
        "a list of strings",
        lambda value: isinstance(value, list | tuple) and all(isinstance(item, str) for item in value),
    ),
    NoneType: ("None", lambda value: value is None),
}
"""Types of the settings, each with a description for error messages and a function that checks the type of a value."""


class Rule(NamedTuple):
    """Rule for the value of a setting. The value None is always valid."""

    is_met: Callable[[Any], object]
    text: str


def between(minimum: float, maximum: float = 2**53 - 1, unit: str = "") -> Rule:
    """Return a rule that a number is at least `minimum` and at most `maximum`. `unit` follows the numbers in the error
    message. Redis scripts cannot represent whole numbers above the default maximum exactly."""
    return Rule(lambda value: minimum <= value <= maximum, f"must be from {minimum} to {maximum}{unit}")


def seconds_from(minimum: float) -> Rule:
    """Return a rule that a time is at least `minimum` seconds and at most 100 years. Redis refuses much later expiry
    times, so a task could not end."""
    return between(minimum, 100 * 365 * 24 * 3600, " seconds")


def _are_networks(texts: Sequence[str]) -> bool:
    try:
        return all(ip_network(text) is not None for text in texts)
    except ValueError:
        return False


BROWSER_ORIGIN = re.compile(r"(?!http:.*:80$|https:.*:443$)https?://[a-z0-9._:\[\]-]*[a-z0-9._\]-]")
"""Pattern of an origin as browsers serialize it in the header ``Origin``: without the default port."""

NETWORKS = Rule(_are_networks, "must be networks, such as 10.1.0.0/16")
WEB_URL = Rule(
    lambda url: is_url(url) and re.match(r"https?://[^/?#@]+([/?#]|$)", url),
    "must begin with http:// or https:// and name a host, without user and password",
)
BLOB_URL = Rule(lambda url: "://" in url, "must be a URL, such as s3://bucket/folder or file:///folder")
HOST_NAMES = Rule(lambda hosts: not set("/: ") & set("".join(hosts)), "must be host names, without scheme and port")
ANY_ORIGIN = "*"
"""Value of `cors_origins` that allows every origin."""
CORS_ORIGINS = Rule(
    lambda texts: (
        tuple(texts) == (ANY_ORIGIN,) or all(is_url(text) and BROWSER_ORIGIN.fullmatch(text) for text in texts)
    ),
    "must be * alone, or origins as browsers send them, such as https://chat.example.com: in lower case, without path "
    "and default port",
)
ARCHIVE = Rule(
    ARCHIVE_URL.fullmatch,
    f"must begin with one of {', '.join(ARCHIVE_DRIVERS)}, then :// and a database that all processes can reach",
)
CLAIM = Rule(str.strip, "must be the name of a claim")
HEADER = Rule(re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch, "must be a header name")  # RFC 9110 5.6.2
KEY_PREFIX = Rule(re.compile(r"[^{\s]+").fullmatch, "must be a word without '{'")


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration of a deployment. Gateways, workers and watchers need the same values.

    Raises:
        ConfigError: A value is invalid. The message contains the name of the setting.
    """

    store_url: str = field(default="", repr=False)
    """URL of the Redis or Valkey server that stores the tasks. Default: the result backend or the broker, if it is a
    Redis or Valkey server."""

    key_prefix: Annotated[str, KEY_PREFIX] = DEFAULT_KEY_PREFIX
    """Prefix of every key. Deployments that share a store or a broker need different prefixes."""

    public_url: Annotated[str | None, WEB_URL] = None
    """URL at which clients reach the gateway, for cards without interfaces. None: the address of the request."""

    allowed_hosts: Annotated[Sequence[str], HOST_NAMES] = ()
    """Values of ``Host`` that a gateway without authentication accepts, in addition to the host of `public_url`, IP
    addresses, names without a dot and names of private networks. ``*`` allows any host."""

    cors_origins: Annotated[Sequence[str], CORS_ORIGINS] = ()
    """Origins of web pages that may send requests, and whose scripts may read the responses. ``*`` allows every origin
    and needs bearer tokens or API keys."""

    grpc_port: Annotated[int | None, between(1, 65535)] = None
    """Port on which each gateway process serves gRPC. None: no gRPC."""

    grpc_public_address: str | None = None
    """``host:port`` of the gRPC interface in cards. None: no gRPC interface in cards."""

    lease_ttl: Annotated[float, seconds_from(1)] = 15.0
    """Seconds after which a run no longer belongs to its worker if the lease is not renewed. The minimum of 1 second
    leaves time for a renewal that must open a connection."""

    cancel_grace: Annotated[float, seconds_from(0.001)] = 5.0
    """Seconds that a cancelled agent may take to stop. A CancelTask request waits slightly longer."""

    input_timeout: Annotated[float | None, seconds_from(1)] = 7 * 24 * 3600.0
    """Seconds after which a task that waits for its client fails. None: no limit."""

    retention: Annotated[int, seconds_from(1)] = 7 * 24 * 3600
    """Seconds for which an ended task stays in the store."""

    archive_url: Annotated[str | None, ARCHIVE, Rule(is_url, UNENCODED)] = field(default=None, repr=False)
    """SQLAlchemy URL, with an asynchronous driver, of the database to which ended tasks are moved after `retention`.
    None: ended tasks are deleted."""

    archive_retention: Annotated[int | None, seconds_from(1)] = None
    """Seconds after its end at which a task is deleted from the archive, more than `retention`. None: no limit."""

    redispatch_after: Annotated[float, seconds_from(1)] = 60.0
    """Seconds after which a run that was published again, or that a busy worker has prefetched, is published once more
    if no worker has claimed it. Each further wait is twice as long. The minimum of 1 second lets a message reach a free
    worker first."""

    ack_emulation: bool = False
    """Lets kombu record the messages of runs in a Redis broker until a worker starts them. False: the store recovers
    the runs of a lost worker."""

    max_request_bytes: Annotated[int, between(1024, 2**31 - 1, " bytes")] = 10 * 1024 * 1024
    """Maximum size of a request body in bytes. gRPC's limit is a C int."""

    task_max_bytes: Annotated[int | None, between(1)] = 64 * 1024 * 1024
    """Maximum size in bytes of a stored task, including a new message. None: no limit."""

    owner_requests_per_second: Annotated[float | None, between(0.0001, 1_000_000)] = None
    """Maximum average number of requests per second of an owner, which is one user across all tenants. A request with a
    large body or response counts as several requests. None: no limit."""

    owner_request_burst: Annotated[int | None, between(1)] = None
    """Maximum number of requests that an owner may send at once after a pause. None: the requests of one second."""

    owner_max_concurrent_tasks: Annotated[int | None, between(1)] = None
    """Maximum number of tasks of an owner that are SUBMITTED or WORKING. None: no limit."""

    owner_max_webhooks: Annotated[int | None, between(1)] = None
    """Maximum number of webhooks of an owner's tasks, including ended tasks in the store. None: no limit."""

    owner_max_streams: Annotated[int | None, between(1)] = None
    """Maximum number of open streams of an owner in one gateway process. None: no limit."""

    agent_max_queue: Annotated[int | None, between(1)] = None
    """Maximum number of runs of an agent, across all owners, that wait for a worker. None: no limit."""

    owner_max_stored_bytes: Annotated[int | None, between(1)] = None
    """Maximum size in bytes of an owner's tasks in the store, including ended tasks and the new message. None: no
    limit."""

    store_watermark: Annotated[float | None, between(0, 0.999)] = 0.9
    """Share of the store's ``maxmemory`` above which messages are refused. None or 0: no limit. The setting has no
    effect on a server without ``maxmemory`` or with eviction."""

    store_wait_replicas: Annotated[int, between(0)] = 0
    """Number of replicas that must confirm, within a second, each write that accepts a message or signal or ends a
    task. An unconfirmed message or signal is refused."""

    secret_key: str | Sequence[str] | None = field(default=None, repr=False)
    """Secret of at least 32 characters, which encrypts webhook credentials and sessions, and from which the webhooks'
    signing secrets are derived. Of several secrets, the first encrypts, and all decrypt. None: no push notifications,
    and sessions are not encrypted."""

    webhook_private_key: str | Sequence[str] | None = field(default=None, repr=False)
    """Ed25519 key, ``whsk_…``, that signs posts to webhooks in addition to HMAC. Of several keys, the first signs, and
    gateways publish the public keys of all. None: HMAC only."""

    blob_url: Annotated[str | None, BLOB_URL, Rule(is_encoded_url, UNENCODED)] = field(default=None, repr=False)
    """fsspec URL of the object store for large parts and large results of durable steps. None: Redis stores them,
    outside of Lua."""

    allow_networks: Annotated[Sequence[str], NETWORKS] = ()
    """Private networks in which webhooks are allowed, such as ``10.1.0.0/16``."""

    webhook_consent: bool = False
    """Makes gateways ask a receiver for consent, in the name of the host of `public_url`, before they accept a
    webhook."""

    ui: bool = False
    """Makes gateways serve the operator's page at ``/ui/``."""

    operators: Annotated[Sequence[str], Rule(all, "must be names of owners, or '*'")] = ()
    """Owners who may use the operator's API and views, which show the tasks of all owners without their contents. ``*``
    means every caller of a gateway without authentication."""

    auth_jwks_url: str | None = None
    """URL of the public keys for bearer tokens, which is the ``jwks_uri`` of the issuer. None: see `auth_jwt_key`."""

    auth_jwt_key: str | None = field(default=None, repr=False)
    """Key for bearer tokens instead of `auth_jwks_url`: a shared secret, a public key in PEM, or a JWK Set as JSON."""

    auth_jwt_algorithms: Sequence[str] = ()
    """Accepted signature algorithms of bearer tokens, such as ``RS256``. Bearer tokens require this setting."""

    auth_jwt_issuer: str | None = None
    """Value that the ``iss`` of bearer tokens must have. Bearer tokens require this setting."""

    auth_jwt_audience: Sequence[str] = ()
    """Accepted values in the ``aud`` of bearer tokens. Bearer tokens require this setting."""

    auth_jwt_owner_claim: Annotated[str, CLAIM] = "sub"
    """Claim of a bearer token that contains the name of the owner."""

    auth_jwt_tenants_claim: Annotated[str | None, CLAIM] = None
    """Claim of a bearer token that lists the tenants that the owner may use. None: the owner may use every tenant."""

    auth_api_keys: str | Sequence[str] | None = field(default=None, repr=False)
    """API keys, each as ``owner:sha256:<hash>`` or ``owner:sha256:<hash>:tenant,tenant``. None: no API keys."""

    auth_identity_header: Annotated[str | None, HEADER] = None
    """Header in which a proxy passes the subject of a verified client certificate. None: no header is trusted."""

    auth_proxy_networks: Annotated[Sequence[str], NETWORKS] = ()
    """Networks of the proxies whose `auth_identity_header` is trusted."""

    uvloop: bool = True
    """Makes gateways, watchers and workers use uvloop if it is installed. False: asyncio's own loop, for agents whose
    libraries need it."""

    log_format: Annotated[str, Rule(FORMATS.__contains__, f"must be {' or '.join(FORMATS)}")] = "text"
    """Format of log lines: ``text``, or ``json`` for one JSON object per line, with stable names of actions and
    fields."""

    def __post_init__(self) -> None:
        for name, rule in self._violations():
            raise _error(name, getattr(self, name), rule)
        for f in fields(self):
            if isinstance(value := getattr(self, f.name), list):  # a tuple keeps the settings immutable
                object.__setattr__(self, f.name, tuple(value))

    def _violations(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that violates a rule, and the rule."""
        for name, (types, rules) in declarations().items():
            value = getattr(self, name)
            if not any(VALUE_TYPES[kind][1](value) for kind in types):
                yield name, f"must be {' or '.join(VALUE_TYPES[kind][0] for kind in types)}"
            or_none = ", or None" if NoneType in types else ""
            yield from ((name, rule.text + or_none) for rule in rules if value is not None and not rule.is_met(value))
        if self.store_url and (rule := store_url_mistake(self.store_url)):
            yield "store_url", rule
        if self.owner_request_burst is not None and self.owner_requests_per_second is None:
            yield "owner_request_burst", "needs a2a_owner_requests_per_second"
        if self.archive_retention is not None and self.archive_retention <= self.retention:
            yield "archive_retention", "must be more than a2a_retention"
        secrets, keys = self.secret_keys, self.webhook_private_keys
        if self.secret_key is not None and min(map(len, secrets), default=0) < 32:
            many = f"has {len(secrets)} secrets, because a space separates secrets: each " if len(secrets) > 1 else ""
            yield "secret_key", f"{many}must have 32 characters or more: use `openssl rand -hex 32`"
        if any(secret.split() != [secret] for secret in secrets):
            yield "secret_key", "must not contain spaces or line ends: use `openssl rand -hex 32`"
        if self.webhook_consent and self.public_url is None:
            yield "webhook_consent", "needs a2a_public_url, whose host each consent request names"
        if self.webhook_private_key is not None:
            try:
                for key in keys:
                    private_key_bytes(key)
            except ValueError as e:
                yield "webhook_private_key", str(e)
            if not 1 <= len(keys) <= MAX_KEYS:
                yield "webhook_private_key", f"must be 1 to {MAX_KEYS} keys, or None"
            if not secrets:
                yield "webhook_private_key", "needs a2a_secret_key, which webhooks require"

    @property
    def secret_keys(self) -> tuple[bytes, ...]:
        """Secrets in `secret_key`, of which the first encrypts."""
        return tuple(secret.encode() for secret in _items(self.secret_key))

    @property
    def webhook_private_keys(self) -> tuple[str, ...]:
        """Keys in `webhook_private_key`."""
        return _items(self.webhook_private_key)

    @property
    def api_keys(self) -> tuple[str, ...]:
        """Keys in `auth_api_keys`."""
        return _items(self.auth_api_keys)

    @property
    def push_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Networks in `allow_networks`, parsed."""
        return tuple(ip_network(network) for network in self.allow_networks)


REMOVED = {
    "auth_api_key_header": "clients send API keys in X-API-Key",
    "blob_threshold": "parts and results larger than 262144 bytes are blobs",
    "docs_url": "the page links to no documentation",
    "first_event_hold": "set the option first_event_hold of the agent",
    "grpc_host": "pass --host to a2a gateway, or grpc_host to a2a.asgi()",
    "grpc_without_authentication": "a2a.asgi(standalone=True) serves gRPC without authentication",
    "owner_max_paused_tasks": "set a2a_owner_max_stored_bytes",
    "owner_max_waiting_tasks": "set a2a_owner_max_concurrent_tasks",
    "preload_agents": "worker processes import the agents of their queues; give a rarely used agent a queue of its own",
    "publish_on_accept": "the store publishes runs if it can write to the queues of the broker",
    "session_max_bytes": "the state of a session may have 1048576 bytes",
    "step_max_bytes": "set a2a_blob_url for results of durable steps that are larger than 1048576 bytes",
    "store_max_bytes": "set maxmemory in the configuration of the store; a2a_store_watermark is a share of it",
    "trace_url": "the page shows the id of the trace",
    "trusted_origins": "set a2a_cors_origins",
    "webhook_bytes_per_hour": "the bytes of posts to webhooks have no limit",
    "webhook_public_keys": "gateways publish the public keys of a2a_webhook_private_key",
}
"""Names that were settings, each with the value that now applies, or with the setting to use instead."""

VARIABLES = {ENV_PREFIX + f.name.upper(): f.name for f in fields(Settings)}
"""Names of the settings, by environment variable."""

SECRETS = frozenset(f.name for f in fields(Settings) if not f.repr)
"""Names of the settings that contain secrets, or URLs with passwords."""


def _items(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the items of a setting. In a string, spaces or line ends separate them."""
    return tuple(value.split() if isinstance(value, str) else value or ())


def _error(name: str, value: Any, rule: str) -> ConfigError:
    text = repr(list(value) if isinstance(value, tuple) else value)
    is_hidden = name in SECRETS or ("://" in text and "@" in text)  # a URL may have a password
    return ConfigError(f"{CONF_PREFIX}{name} = {'…' if is_hidden else text}: {rule}")


@cache
def declarations() -> dict[str, tuple[tuple[Any, ...], tuple[Rule, ...]]]:
    """Return the types of each setting, which are keys of `VALUE_TYPES`, and the rules of the setting."""
    hints = get_type_hints(Settings, include_extras=True)
    declared = {name: get_args(hint) if get_origin(hint) is Annotated else (hint,) for name, hint in hints.items()}
    return {
        name: (get_args(hint) if isinstance(hint, UnionType) else (hint,), tuple(rules))
        for name, (hint, *rules) in declared.items()
    }


def visible_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name as JSON values, without secrets, for display and for comparisons between
    processes."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.repr}
    values["blob_url"] = url_address(settings.blob_url) or None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def default_of(name: str) -> Any:
    """Return the default of the setting `name`."""
    return getattr(Settings(), name)
