"""Signed HTTP requests for events and pings. The signatures follow Standard Webhooks.

The config determines the headers of a request. The subscription determines the protocol version.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from urllib.parse import parse_qsl, unquote, urlsplit

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types import Message, StreamResponse, Task, TaskPushNotificationConfig, TaskStatusUpdateEvent
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf.json_format import MessageToDict, SerializeToJsonError

from ..crypto.webhook_keys import KEY_BYTES, PUBLIC_KEY_PREFIX, decode_base64, private_key_bytes
from ..lifecycle import Event, EventId, encode
from ..lifecycle.events import time_text

SECRET_PREFIX = "whsec_"

DERIVED_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]+")
_MIN_SECRET_BYTES = 16
"""Minimum length of a client's secret in bytes. Standard Webhooks requires 24 bytes, but its libraries accept any
length."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signer for the posts of a config. A post is signed with every secret and key.

    A receiver accepts a post if one of the signatures is valid, so a secret can be rotated without rejected posts.
    """

    secrets: Sequence[bytes] = field(default=(), repr=False)
    private_keys: Sequence[Ed25519PrivateKey] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        config: TaskPushNotificationConfig,
        secret_keys: Sequence[bytes] = (),
        private_keys: Sequence[Ed25519PrivateKey] = (),
    ) -> Signer:
        """Return the signer for `config`.

        The secret is the token of the config. Without a token, a secret is derived from each of the deployment's
        `secret_keys`, the newest first. Posts are also signed with each of `private_keys`. Without any secret or key,
        posts are not signed.

        Raises:
            ValueError: The token begins with ``whsec_`` but is not a valid secret.
        """
        if config.token:
            return cls([parse_secret(config.token)], private_keys)
        return cls([derive_secret(key, config.task_id, config.id) for key in secret_keys], private_keys)

    def headers(self, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the headers that identify and sign a post.

        Without any secret or key, the header ``webhook-signature`` is omitted.

        Args:
            delivery_id: Id of the delivery.
            timestamp: Time of the post, in whole seconds since 1970.
            body: Body of the post.

        Raises:
            ValueError: `delivery_id` has characters other than letters, digits, hyphens and underscores. A dot would
                make the signed text ambiguous.
        """
        if not _ID.fullmatch(delivery_id):
            raise ValueError(f"invalid delivery id: {delivery_id!r}")
        signed_content = f"{delivery_id}.{timestamp}.".encode() + body
        signatures = [
            *("v1," + _base64(hmac.new(secret, signed_content, hashlib.sha256).digest()) for secret in self.secrets),
            *("v1a," + _base64(key.sign(signed_content)) for key in self.private_keys),
        ]
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def parse_secret(token: str) -> bytes:
    """Return the secret in a token: the decoded base64 after ``whsec_``, or the whole token if it has no such prefix.

    Raises:
        ValueError: ``whsec_`` is not followed by base64 of at least 16 bytes.
    """
    if not is_secret(token):
        return token.encode()
    secret = decode_base64(token.removeprefix(SECRET_PREFIX))
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(f"{SECRET_PREFIX} must be followed by base64 of at least {_MIN_SECRET_BYTES} bytes")
    return secret


def is_secret(token: str) -> bool:
    """Return True if `token` has the form of a signing secret (``whsec_…``), which is never sent."""
    return token.startswith(SECRET_PREFIX)


def derive_secret(secret_key: bytes, task_id: str, config_id: str) -> bytes:
    """Derive the secret of a task's config from `secret_key`, deterministically.

    Raises:
        ValueError: `secret_key` is empty.
    """
    if not secret_key:
        raise ValueError("cannot derive a secret from an empty key")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"webhook", task_id.encode(), config_id.encode()))
    return HKDF(SHA256(), DERIVED_BYTES, salt=None, info=info).derive(secret_key)


def format_secret(secret: bytes) -> str:
    """Return `secret` in the format of Standard Webhooks, ``whsec_…``."""
    return SECRET_PREFIX + _base64(secret)


def parse_private_key(text: str) -> Ed25519PrivateKey:
    """Decode an Ed25519 private key from the format ``whsk_…``.

    Raises:
        ValueError: `text` is not a private key.
    """
    return Ed25519PrivateKey.from_private_bytes(private_key_bytes(text)[:KEY_BYTES])


def format_public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key of `key` as ``whpk_…``, with which receivers verify signatures."""
    return PUBLIC_KEY_PREFIX + _base64(key.public_key().public_bytes_raw())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


USER_AGENT = f"a2a-celery/{version('a2a-celery')}"
A2A_JSON = "application/a2a+json"
LEGACY_JSON = PLAIN_JSON = "application/json"
PING_TYPE = "webhook.ping"
"""Value of ``type`` in the body of a ping. As Standard Webhooks recommends, the body contains type, timestamp and data.
"""

LARGE_TASK = 64 * 1024
"""Serialized size, in bytes, above which a task is posted without its history. The receiver can read the history with
GetTask."""

MIN_SECRET_PATH_LENGTH = 6
"""Minimum length, in characters, of a URL's path or query that is treated as a secret. For example, ``/hook`` is too
short."""
MIN_SECRET_SEGMENT_LENGTH = 12
"""Minimum length, in characters, of a path segment or query value that is treated as a secret."""


def delivery_id(task_id: str, config_id: str, event_id: EventId | str) -> str:
    """Return the id of a delivery. Repeated posts of an event or ping to a config have the same id, for deduplication.

    The id ends with the event's id in the task's log, which consists of a version and a time. A later event of the task
    has a higher version. If the store has lost its newest events, a version may be used again, but a later event always
    has a later time.
    """
    digest = hashlib.sha256(json.dumps([task_id, config_id]).encode()).hexdigest()
    return f"msg_{digest[:32]}_{event_id}"


@dataclass(frozen=True, slots=True)
class PostRequest:
    """HTTP request to a webhook. The repr contains only the URL."""

    url: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of the request, which are redacted from the stored response."""
    method: str = "POST"

    @classmethod
    def for_consent(cls, url: str, origin: str) -> PostRequest:
        """Return the request that asks a receiver to allow posts from `origin`. The request contains neither secrets
        nor task data.

        Source: CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0.2, 4.1 (validation request).
        """
        headers = {"User-Agent": USER_AGENT, "Accept": "*/*", "WebHook-Request-Origin": origin}
        return cls(url, headers, b"", method="OPTIONS")

    @classmethod
    def build(
        cls,
        event: Event,
        config: TaskPushNotificationConfig,
        *,
        delivery_id: str,
        now: float,
        signer: Signer,
        protocol: str = "1.0",
    ) -> PostRequest:
        """Return the signed request that posts `event` to the receiver of `config`.

        Args:
            event: Event to post. A2A 0.3 requires a complete task.
            config: Config of the webhook.
            delivery_id: Id of the delivery.
            now: Time of the signature, in seconds since 1970.
            signer: Signer of the config.
            protocol: A2A version of the client that created the config.

        Raises:
            ValueError: The protocol cannot express the event, or `delivery_id` cannot be signed.
        """
        legacy = is_legacy_version(protocol)
        event = _without_large_history(event)
        body = _legacy_body(event) if legacy else _body(event)
        return cls._sign(body, LEGACY_JSON if legacy else A2A_JSON, config, delivery_id, now, signer)

    @classmethod
    def ping(cls, config: TaskPushNotificationConfig, *, delivery_id: str, now: float, signer: Signer) -> PostRequest:
        """Return the signed request that tests the webhook of `config`. The body is not an A2A event.

        Raises:
            ValueError: `delivery_id` cannot be signed.
        """
        fields = {
            "type": PING_TYPE,
            "timestamp": datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z"),
            "data": {"taskId": config.task_id, "id": config.id},
        }
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        return cls._sign(body, PLAIN_JSON, config, delivery_id, now, signer)

    @classmethod
    def _sign(
        cls,
        body: bytes,
        media_type: str,
        config: TaskPushNotificationConfig,
        delivery_id: str,
        now: float,
        signer: Signer,
    ) -> PostRequest:
        headers = {
            "Content-Type": media_type,
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            **_authentication(config),
            **signer.headers(delivery_id, int(now), body),
        }
        secrets = (config.authentication.credentials, config.token, *_secrets_of(config.url))
        return cls(config.url, headers, body, tuple(secret for secret in secrets if secret))


def _without_large_history(event: Event) -> Event:
    """Return `event` without its history if it is a large task.

    Otherwise, a client could make the watcher send any number of bytes to another server.
    """
    if not isinstance(event, Task) or not event.history or event.ByteSize() <= LARGE_TASK:
        return event
    task = Task()
    task.CopyFrom(event)
    task.ClearField("history")
    return task


def _authentication(config: TaskPushNotificationConfig) -> dict[str, str]:
    """Return the authentication headers of the config. A scheme without credentials is ignored."""
    headers = {}
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["Authorization"] = f"{auth.scheme} {auth.credentials}"
    if config.token and not is_secret(config.token):
        headers["X-A2A-Notification-Token"] = config.token
    return headers


def _secrets_of(url: str) -> list[str]:
    """Return the parts of `url` that may be secrets: path, query, segments and values, percent-encoded and decoded.

    Short parts are omitted, because their redaction would remove common words from a response.
    """
    path, query = urlsplit(url)[2:4]
    components = [path, unquote(path), query, unquote(query)]
    values = [value for _, value in parse_qsl(query)]
    segments = [*path.split("/"), *unquote(path).split("/"), *query.split("&"), *values]
    secrets = [component for component in components if len(component) >= MIN_SECRET_PATH_LENGTH]
    secrets += [segment for segment in segments if len(segment) >= MIN_SECRET_SEGMENT_LENGTH]
    return list(dict.fromkeys(secrets))


def _body(event: Event) -> bytes:
    response = StreamResponse.FromString(encode(event))
    try:
        fields = MessageToDict(response)
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.status.HasField("timestamp"):
            next(iter(fields.values()))["status"]["timestamp"] = time_text(event.status.timestamp)
        # sorted, because protobuf maps have a different order in each process, and repeated posts need the same body
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    except SerializeToJsonError as e:  # the metadata contains NaN or infinity
        raise ValueError(f"the event cannot be represented in JSON: {e}") from None


def _legacy_body(event: Event) -> bytes:
    if not isinstance(event, Task):
        kind = "a message" if isinstance(event, Message) else "an update of a task"
        raise ValueError(f"A2A 0.3 sends complete tasks to webhooks, not {kind}")
    task = to_compat_task(event)
    if event.status.HasField("timestamp"):
        task.status.timestamp = time_text(event.status.timestamp)
    return task.model_dump_json(by_alias=True, exclude_none=True).encode()
