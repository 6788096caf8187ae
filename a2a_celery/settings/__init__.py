"""Immutable, validated settings, with their units and defaults.

The setting `lease_ttl` is ``a2a_lease_ttl`` in the Celery configuration and ``A2A_LEASE_TTL`` in the environment. The
environment takes precedence. A variable such as ``A2A_SECRET_KEY_FILE`` contains the path of a file with a secret.
Times are in seconds unless the name of the setting contains another unit.
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
from .urls import ARCHIVE_RULE, UNENCODED, is_archive_url, is_encoded_url, is_url, store_url_mistake

CONF_PREFIX = "a2a_"
ENV_PREFIX = "A2A_"
FILE_SUFFIX = "_FILE"

DEFAULT_KEY_PREFIX = "a2a"

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Pattern of the names of headers and authentication schemes.

Source: RFC 9110 5.6.2.
"""

VALUE_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a string", lambda value: isinstance(value, str)),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a finite number",
        lambda value: (
            (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and isfinite(value))
        ),
    ),
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


MAX_NUMBER = 2**53 - 1
"""Maximum of all numbers. Redis scripts cannot represent larger whole numbers exactly."""

MAX_SECONDS = 100 * 365 * 24 * 3600
"""Maximum of all times in seconds. Redis refuses much later expiry times, so a task could not end."""

MAX_GRPC_BYTES = 2**31 - 1
"""Maximum of gRPC's limit on the size of a message, which is a C int."""


def at_least(minimum: int, unit: str) -> Rule:
    """Return a rule that a value is at least `minimum`. `unit` follows the number in the error message."""
    return Rule(lambda value: value >= minimum, f"must be at least {minimum}{unit}")


def _is_prefix(text: str) -> bool:
    return re.fullmatch(r"[^{\s]+", text) is not None


def _are_networks(texts: Sequence[str]) -> bool:
    try:
        return all(ip_network(text) is not None for text in texts)
    except ValueError:
        return False


def _is_web_url(text: str) -> bool:
    if not is_url(text):
        return False
    url = urlsplit(text)
    return url.scheme in ("http", "https") and bool(url.netloc) and "@" not in url.netloc


MORE_THAN_0_SECONDS = Rule(lambda value: value > 0, "must be more than 0 seconds")
AT_LEAST_1_SECOND = at_least(1, " second")
AT_MOST_100_YEARS = Rule(lambda value: value <= MAX_SECONDS, f"must be at most {MAX_SECONDS} seconds (100 years)")
AT_LEAST_1 = at_least(1, ", or None")
GRPC_BYTES = Rule(lambda size: size <= MAX_GRPC_BYTES, f"must be at most {MAX_GRPC_BYTES} bytes")
NETWORKS = Rule(_are_networks, "must be networks, such as 10.1.0.0/16")
WEB_URL = Rule(_is_web_url, "must begin with http:// or https:// and name a host, without user and password")
BLOB_URL = Rule(lambda url: "://" in url, "must be a URL, such as s3://bucket/folder or file:///folder")
HOST_NAMES = Rule(lambda hosts: not set("/: ") & set("".join(hosts)), "must be host names, without scheme and port")
ORIGINS = Rule(
    lambda texts: all(_is_web_url(text) and not urlsplit(text).path for text in texts),
    "must be origins, such as https://chat.example.com",
)
TRACE_ID = "{trace_id}"
"""Placeholder for the id of a trace in `trace_url`."""
TRACE_URL = Rule(
    lambda url: _is_web_url(url) and TRACE_ID in url,
    f"must begin with http:// or https://, name a host without user and password, and contain {TRACE_ID}",
)
CLAIM = Rule(str.strip, "must be the name of a claim")
HEADER = Rule(TOKEN.fullmatch, "must be a header name")


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration of a deployment. Gateways, workers and watchers need the same values.

    Raises:
        ConfigError: A value is invalid. The message contains the name of the setting.
    """

    store_url: str = field(default="", repr=False)
    """URL of the Redis or Valkey server that stores the tasks. The default is the result backend if it is a Redis or
    Valkey server, and otherwise the broker."""

    key_prefix: Annotated[str, Rule(_is_prefix, "must be a word without '{'")] = DEFAULT_KEY_PREFIX
    """Prefix of every key in the store. Deployments that share a store or a broker need different prefixes."""

    public_url: Annotated[str | None, WEB_URL] = None
    """URL at which clients reach the gateway. Cards that list no interface receive interfaces at this URL. None: use
    the address of the request."""

    allowed_hosts: Annotated[Sequence[str], HOST_NAMES] = ()
    """Values of the ``Host`` header that a gateway without authentication accepts, in addition to the host of
    `public_url`. ``*`` allows any host. IP addresses, names without a dot and names of private networks (``.local``,
    ``.internal``) are always accepted."""

    trusted_origins: Annotated[Sequence[str], ORIGINS] = ()
    """Origins of web pages, such as ``https://chat.example.com``, that may send requests to a gateway without
    authentication. Pages of the gateway itself are always allowed."""

    grpc_port: Annotated[int | None, Rule(lambda port: 1 <= port <= 65535, "must be a port, 1 to 65535")] = None
    """Port on which each gateway process serves gRPC. None: no gRPC."""

    grpc_host: str = "127.0.0.1"
    """Address on which gateways listen for gRPC. ``celery a2a gateway --host`` also sets it."""

    grpc_without_authentication: bool = False
    """Allows `a2a.asgi()` to serve gRPC without authentication if no ``auth_`` setting is set. An application in which
    the gateway is mounted may authenticate HTTP callers, but does not receive gRPC calls."""

    grpc_public_address: str | None = None
    """``host:port`` of the gRPC interface in cards. None: no gRPC interface in cards."""

    lease_ttl: Annotated[float, AT_LEAST_1_SECOND, AT_MOST_100_YEARS] = 15.0
    """Time after which a run no longer belongs to its worker if the lease is not renewed. Workers renew a lease three
    times in this time. The minimum is 1 second, because a renewal may take longer than a third of a shorter lease, for
    example while a connection is opened again."""

    cancel_grace: Annotated[float, MORE_THAN_0_SECONDS, AT_MOST_100_YEARS] = 5.0
    """Time that a cancelled agent may take to stop. A CancelTask request waits slightly longer."""

    first_event_hold: Annotated[
        float, Rule(lambda value: value >= 0, "must be 0 seconds or more"), AT_MOST_100_YEARS
    ] = 0.5
    """Time without an event of an executor after which its task becomes WORKING and streams show the task. Until then,
    the agent may respond with a single message instead of a task. 0: do not wait. A single message then completes the
    task."""

    input_timeout: Annotated[float | None, at_least(1, " second, or None"), AT_MOST_100_YEARS] = 7 * 24 * 3600.0
    """Time, at least 1 second, after which a task that waits for its client in INPUT_REQUIRED or AUTH_REQUIRED fails.
    None: no limit."""

    retention: Annotated[int, at_least(1, " second"), AT_MOST_100_YEARS] = 7 * 24 * 3600
    """Time for which an ended task, its log and its list entries stay in the store, in whole seconds."""

    archive_url: Annotated[
        str | None, Rule(is_archive_url, f"must begin with {ARCHIVE_RULE}"), Rule(is_url, UNENCODED)
    ] = field(default=None, repr=False)
    """SQLAlchemy URL, with an asynchronous driver, of the database to which ended tasks are moved after `retention`,
    such as ``postgresql+asyncpg://…``. None: ended tasks are deleted."""

    archive_retention: Annotated[int | None, AT_MOST_100_YEARS] = None
    """Time after which an ended task is deleted from the archive, in whole seconds since the task ended. The time must
    exceed `retention`. None: no limit."""

    redispatch_after: Annotated[float, AT_LEAST_1_SECOND, AT_MOST_100_YEARS] = 60.0
    """Seconds after which a run that was published again, or that a busy worker has prefetched, is published once more
    if no worker has claimed it.

    Each further wait is twice as long. A run is not published while its message may still be in the queue. The minimum
    is 1 second, so that a message can reach a free worker before the run is published again.
    """

    publish_on_accept: bool = True
    """Lets the store push the Celery message of a run when the store accepts the client's message, if broker and store
    are one Redis server. False: publish each run in a separate step."""

    ack_emulation: bool = False
    """Lets kombu record the messages of runs in a Redis broker until a worker starts them, with two transactions per
    run. False: rely on the store, which recovers the runs of a lost worker. The setting has no effect on other messages
    or other brokers."""

    max_request_bytes: Annotated[int, at_least(1024, " bytes"), GRPC_BYTES] = 10 * 1024 * 1024
    """Maximum size of a request body in bytes."""

    task_max_bytes: Annotated[int | None, AT_LEAST_1] = 64 * 1024 * 1024
    """Maximum size of a stored task in bytes, including the message that is added to it. None: no limit."""

    owner_requests_per_second: Annotated[
        float | None, Rule(lambda rate: 1e-6 <= rate <= 1e6, "must be from 0.000001 to 1000000, or None")
    ] = None
    """Maximum average number of requests per second of an owner, which is one user across all tenants. A request with a
    large body or response counts as several requests. None: no limit."""

    owner_request_burst: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of requests that an owner may send at once after a pause. None: the number of requests per second,
    and at least one."""

    owner_max_concurrent_tasks: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of tasks of an owner that are SUBMITTED or WORKING. None: no limit."""

    owner_max_waiting_tasks: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of tasks of an owner that wait for a worker (SUBMITTED). None: no limit."""

    owner_max_paused_tasks: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of tasks of an owner that wait for their client (INPUT_REQUIRED or AUTH_REQUIRED). At the limit,
    new tasks are refused. None: no limit."""

    owner_max_webhooks: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of webhooks of an owner's tasks, including ended tasks in the store. None: no limit."""

    owner_max_streams: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of open streams of an owner in one gateway process. None: no limit."""

    agent_max_queue: Annotated[int | None, AT_LEAST_1] = None
    """Maximum number of runs of an agent, across all owners, that wait for a worker. None: no limit."""

    owner_max_stored_bytes: Annotated[int | None, AT_LEAST_1] = None
    """Maximum size, in bytes, of an owner's tasks in the store, including the new message. Ended tasks count toward the
    limit until they are removed from the store. None: no limit."""

    store_max_bytes: Annotated[int | None, AT_LEAST_1] = None
    """Maximum size, in bytes, of all tasks in the store, including the new message. None: no limit."""

    store_watermark: Annotated[
        float | None, Rule(lambda share: 0 <= share < 1, "must be 0 or more and less than 1, or None")
    ] = 0.9
    """Share of the store's ``maxmemory``, from 0 to 1, above which messages are refused, so that running tasks can end.
    None or 0: no limit. The setting has no effect on a server without ``maxmemory`` or with eviction."""

    store_wait_replicas: Annotated[int, Rule(lambda value: value >= 0, "must be 0 or more")] = 0
    """Number of replicas that must confirm, within a second, each write that accepts a message or signal or ends a
    task. An unconfirmed message or signal is refused. If the end of a task is not confirmed, the task has still ended,
    and a warning is logged. 0: do not wait for replicas."""

    step_max_bytes: Annotated[int, at_least(2, " bytes")] = 1024 * 1024
    """Maximum size of the recorded result of a durable step in bytes. The limit does not apply if `blob_url` is set."""

    session_max_bytes: Annotated[int, at_least(2, " bytes")] = 256 * 1024
    """Maximum size of the state of an agent's session as JSON, in bytes."""

    secret_key: str | Sequence[str] | None = field(default=None, repr=False)
    """Secret of at least 32 characters. It encrypts webhook credentials and sessions in the store, and the webhooks'
    signing secrets are derived from it. If there are several secrets, the first one encrypts, and all of them decrypt.
    Separate secrets by spaces in the environment. None: no push notifications, and sessions are not encrypted."""

    webhook_private_key: str | Sequence[str] | None = field(default=None, repr=False)
    """Ed25519 key, ``whsk_…``, that signs posts to webhooks in addition to HMAC. If there are several keys, the first
    one signs, and gateways publish the public keys of all keys. Separate keys by spaces in the environment. None: HMAC
    only."""

    webhook_public_keys: Sequence[str] = ()
    """Further public keys, ``whpk_…``, that gateways publish, for private keys that only watchers have."""

    blob_url: Annotated[str | None, BLOB_URL, Rule(is_encoded_url, UNENCODED)] = field(default=None, repr=False)
    """fsspec URL of the object store for large parts and large results of durable steps, such as ``s3://bucket/a2a`` or
    ``file:///srv/a2a``. None: Redis stores all parts and results, outside of Lua."""

    blob_threshold: Annotated[int, at_least(1024, " bytes")] = 256 * 1024
    """Size in bytes above which a part or the result of a durable step is stored at `blob_url`. Without `blob_url`:
    size of a message, event or result above which Redis stores its parts outside of Lua."""

    allow_networks: Annotated[Sequence[str], NETWORKS] = ()
    """Private networks in which webhooks are allowed, such as ``10.1.0.0/16``, separated by spaces in the
    environment."""

    webhook_bytes_per_hour: Annotated[int | None, at_least(1024 * 1024, " bytes, or None")] = 1024**3
    """Maximum number of bytes per hour that are posted to an owner's webhooks at a host. Further posts wait. None: no
    limit."""

    webhook_consent: bool = False
    """Makes gateways ask a receiver for consent before they accept a webhook. The gateway sends an ``OPTIONS`` request
    with the host of `public_url` in ``WebHook-Request-Origin``."""

    ui: bool = False
    """Makes gateways serve the operator's page at ``/ui/``."""

    operators: Annotated[Sequence[str], Rule(all, "must be names of owners, or '*'")] = ()
    """Owners who may use the operator's API at ``/operator/v1`` and the operator's views of the page, which show the
    tasks of all owners without their contents. ``*`` means every caller of a gateway without authentication. Separate
    owners by spaces in the environment."""

    trace_url: Annotated[str | None, TRACE_URL] = None
    """URL at which a tracing system shows a trace, with ``{trace_id}`` as the placeholder of the trace's id. The
    operator's page links to the URL. None: no links."""

    auth_jwks_url: str | None = None
    """URL of the public keys for bearer tokens, which is the ``jwks_uri`` of the issuer. None: see `auth_jwt_key`."""

    auth_jwt_key: str | None = field(default=None, repr=False)
    """Key for bearer tokens instead of `auth_jwks_url`: a shared secret, a public key in PEM, or a JWK Set as JSON."""

    auth_jwt_algorithms: Sequence[str] = ()
    """Accepted signature algorithms of bearer tokens, such as ``RS256``. Required if `auth_jwks_url` or `auth_jwt_key`
    is set."""

    auth_jwt_issuer: str | None = None
    """Value that the ``iss`` of bearer tokens must have. Required if `auth_jwks_url` or `auth_jwt_key` is set."""

    auth_jwt_audience: Sequence[str] = ()
    """Accepted values in the ``aud`` of bearer tokens. Required if `auth_jwks_url` or `auth_jwt_key` is set."""

    auth_jwt_owner_claim: Annotated[str, CLAIM] = "sub"
    """Claim of a bearer token that contains the name of the owner."""

    auth_jwt_tenants_claim: Annotated[str | None, CLAIM] = None
    """Claim of a bearer token that lists the tenants that the owner may use. None: the owner may use every tenant."""

    auth_api_keys: str | Sequence[str] | None = field(default=None, repr=False)
    """API keys, each as ``owner:sha256:<hash>`` or ``owner:sha256:<hash>:tenant,tenant``, separated by spaces in the
    environment. An owner may have several keys. None: no API keys."""

    auth_api_key_header: Annotated[str, HEADER] = "X-API-Key"
    """Name of the header, or of the gRPC metadata, that contains the API key."""

    auth_identity_header: Annotated[str | None, HEADER] = None
    """Header in which a proxy passes the subject of a verified client certificate. None: no header is trusted."""

    auth_proxy_networks: Annotated[Sequence[str], NETWORKS] = ()
    """Networks of the proxies whose `auth_identity_header` is trusted, separated by spaces in the environment."""

    uvloop: bool = True
    """Makes gateways, watchers and workers use uvloop if it is installed (extra ``fast``). Use False for agents whose
    libraries require asyncio's own event loop, such as nest_asyncio."""

    preload_agents: bool = True
    """Makes each worker process import, when it starts, the agents that are registered by import path. False: import an
    agent at its first message. Green pools (gevent, eventlet) always import an agent at its first message."""

    log_format: Annotated[str, Rule(FORMATS.__contains__, f"must be {' or '.join(FORMATS)}")] = "text"
    """Format of log lines: ``text``, or ``json`` for one JSON object per line, with stable names of actions and
    fields."""

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
        self._require("secret_key", bool(is_long), "must have 32 characters or more: use `openssl rand -hex 32`")
        has_name = not self.webhook_consent or self.public_url is not None
        self._require("webhook_consent", has_name, "needs a2a_public_url, whose host each consent request names")
        self._require_signing_keys()

    def _check(self, name: str, annotation: Any, *rules: Rule) -> None:
        value = getattr(self, name)
        members = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        types = [VALUE_TYPES[member] for member in members]
        texts = [text for text, _ in types]
        expected = f"{', '.join(texts[:-1])}, or {texts[-1]}" if texts[1:] else texts[0]
        self._require(name, any(has_type(value) for _, has_type in types), f"must be {expected}")
        if isinstance(value, list):  # a tuple keeps the settings immutable
            object.__setattr__(self, name, tuple(value))
        is_small = not isinstance(value, int | float) or value <= MAX_NUMBER
        self._require(name, is_small, f"must be at most {MAX_NUMBER}")
        for rule in rules:
            self._require(name, value is None or bool(rule.is_met(value)), rule.text)

    @property
    def secret_keys(self) -> tuple[bytes, ...]:
        """Secrets in `secret_key`, of which the first encrypts."""
        if self.secret_key is None:
            return ()
        keys = (self.secret_key,) if isinstance(self.secret_key, str) else self.secret_key
        return tuple(key.encode() for key in keys)

    def _require_signing_keys(self) -> None:
        """Check the webhook keys. Error messages contain no keys, because a private key may be in the wrong setting."""
        readers = {"webhook_private_key": private_key_bytes, "webhook_public_keys": public_key_bytes}
        for name, reader in readers.items():
            keys = self.webhook_private_keys if name == "webhook_private_key" else self.webhook_public_keys
            try:
                for key in keys:
                    reader(key)
            except ValueError as e:
                raise ConfigError(f"{CONF_PREFIX}{name}: {e}") from None
            if len(keys) > MAX_KEYS:
                raise ConfigError(f"{CONF_PREFIX}{name} has {len(keys)} keys, more than the maximum of {MAX_KEYS}")
        is_set = self.webhook_private_key is not None
        self._require("webhook_private_key", not is_set or bool(self.webhook_private_keys), "must be a key, or None")
        self._require(
            "webhook_private_key",
            not is_set or self.secret_key is not None,
            "needs a2a_secret_key, which webhooks require",
        )

    @property
    def webhook_private_keys(self) -> tuple[str, ...]:
        """Keys in `webhook_private_key`."""
        if isinstance(self.webhook_private_key, str):
            return tuple(self.webhook_private_key.split())
        return tuple(self.webhook_private_key or ())

    @property
    def blob_place(self) -> str | None:
        """URL of the object store without user, password and query, for display."""
        if self.blob_url is None:
            return None
        parts = urlsplit(self.blob_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def api_keys(self) -> tuple[str, ...]:
        """Keys in `auth_api_keys`."""
        if isinstance(self.auth_api_keys, str):
            return tuple(self.auth_api_keys.split())
        return tuple(self.auth_api_keys or ())

    @property
    def push_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Networks in `allow_networks`, parsed."""
        return tuple(ip_network(network) for network in self.allow_networks)

    def _require(self, name: str, is_met: bool, rule: str) -> None:
        if not is_met:
            value = repr(getattr(self, name))
            secret = any(f.name == name and not f.repr for f in fields(self))  # a URL may have a password
            secret = secret or name == "webhook_public_keys"  # a private key may be there by mistake
            secret = secret or ("://" in value and "@" in value)
            raise ConfigError(f"{CONF_PREFIX}{name} = {'…' if secret else value}: {rule}")


def visible_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name as JSON values, without secrets, for display and for comparisons between
    processes."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.repr}
    values["blob_url"] = settings.blob_place
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def default_of(name: str) -> Any:
    """Return the default of the setting `name`, or None if the setting has no default."""
    setting = next(f for f in fields(Settings) if f.name == name)
    return None if setting.default is MISSING else setting.default
