"""Signed HTTP request for one event, in the protocol version and with the headers of its config."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from urllib.parse import parse_qsl, unquote, urlsplit

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types import Message, StreamResponse, Task, TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict, SerializeToJsonError

from ..lifecycle import Event, EventId, encode
from .signature import Signer, is_secret

USER_AGENT = f"a2a-celery/{version('a2a-celery')}"
A2A_JSON = "application/a2a+json"
LEGACY_JSON = PLAIN_JSON = "application/json"
PING_TYPE = "webhook.ping"
"""Type of a test ping. Its body follows the conventions of Standard Webhooks: type, timestamp, data."""

LARGE_TASK = 64 * 1024
"""Serialized bytes of a task above which it is posted without its history. The receiver can fetch the history."""

MIN_SECRET_PATH_LENGTH = 6
"""Minimum length of a URL's path, or query, that is treated as a secret: `/hook` is none."""
MIN_SECRET_SEGMENT_LENGTH = 12
"""Minimum length of a segment of the path, or a value of the query, that is treated as a secret."""


def delivery_id(task_id: str, config_id: str, event_id: EventId | str) -> str:
    """Return the id that all posts of one event, or of one ping, to one config share, so that receivers deduplicate.

    The id ends with the event's id in the task's log. Later events of one config have higher versions. If the store
    has lost the newest events, later events have later times.
    """
    digest = hashlib.sha256(json.dumps([task_id, config_id]).encode()).hexdigest()
    return f"msg_{digest[:32]}_{event_id}"


@dataclass(frozen=True, slots=True)
class PostRequest:
    """HTTP request to a webhook. Its repr shows the URL only."""

    url: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of the request, which are redacted from the stored response."""
    method: str = "POST"

    @classmethod
    def for_consent(cls, url: str, origin: str) -> PostRequest:
        """Return the request that asks a receiver whether `origin` may post to it. It has no secret and no task data.

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
            event: Event to post. A2A 0.3 posts whole tasks only, so for 0.3 it must be the task.
            config: Config of the webhook.
            delivery_id: Id of the delivery.
            now: Time of the signature, in seconds since the epoch.
            signer: Signer of the config.
            protocol: Version of A2A that the subscriber used.

        Raises:
            ValueError: The protocol cannot express the event, or `delivery_id` cannot be signed.
        """
        legacy = is_legacy_version(protocol)
        event = _without_large_history(event)
        body = _legacy_body(event) if legacy else _body(event)
        return cls._signed(body, LEGACY_JSON if legacy else A2A_JSON, config, delivery_id, now, signer)

    @classmethod
    def ping(cls, config: TaskPushNotificationConfig, *, delivery_id: str, now: float, signer: Signer) -> PostRequest:
        """Return the signed request that tests the webhook of `config`. Its body is no event of A2A.

        Raises:
            ValueError: `delivery_id` cannot be signed.
        """
        fields = {
            "type": PING_TYPE,
            "timestamp": datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z"),
            "data": {"taskId": config.task_id, "id": config.id},
        }
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        return cls._signed(body, PLAIN_JSON, config, delivery_id, now, signer)

    @classmethod
    def _signed(
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
    """Return a large task without its history, which bounds what a client can have posted to a foreign server."""
    if not isinstance(event, Task) or not event.history or event.ByteSize() <= LARGE_TASK:
        return event
    task = Task()
    task.CopyFrom(event)
    task.ClearField("history")
    return task


def _authentication(config: TaskPushNotificationConfig) -> dict[str, str]:
    """Return the authentication headers of the config. A scheme without credentials has no header."""
    headers = {}
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["Authorization"] = f"{auth.scheme} {auth.credentials}"
    if config.token and not is_secret(config.token):
        headers["X-A2A-Notification-Token"] = config.token
    return headers


def _secrets_of(url: str) -> list[str]:
    """Return the parts of `url` that may be secrets, encoded and decoded: path, query, segments and values.

    Short parts are left out, because their redaction would remove common words from a response.
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
        # sorted, since protobuf maps have another order in each process, and a repeated post has an identical body
        return json.dumps(MessageToDict(response), separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    except SerializeToJsonError as e:  # a number in metadata that JSON does not have
        raise ValueError(f"not expressible in JSON: {e}") from None


def _legacy_body(event: Event) -> bytes:
    if not isinstance(event, Task):
        kind = "message" if isinstance(event, Message) else "part of a task"
        raise ValueError(f"A2A 0.3 posts whole tasks to webhooks, not a {kind}")
    return to_compat_task(event).model_dump_json(by_alias=True, exclude_none=True).encode()
