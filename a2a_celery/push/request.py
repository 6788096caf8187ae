"""What is posted: an event as its subscriber reads it, with the headers its config asks for, and signed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.metadata import version
from urllib.parse import parse_qsl, unquote, urlsplit

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types import Message, StreamResponse, Task, TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict, SerializeToJsonError

from ..lifecycle import Event, encode
from .signature import Signer, is_secret

USER_AGENT = f"a2a-celery/{version('a2a-celery')}"
A2A_JSON = "application/a2a+json"
LEGACY_JSON = "application/json"

SHORTEST_WHOLE = 6
"""Characters of a URL's path, or query, that may be a secret: `/hook` is none."""
SHORTEST_PART = 12
"""The same for one segment of a path, or one value of a query."""


def delivery_id(task_id: str, config_id: str, version: int) -> str:
    """The id that every post of one event to one config carries: a receiver drops what it has had.

    It ends with the event's version in the task's log, so within one config later events have higher numbers.
    """
    line = hashlib.sha256(json.dumps([task_id, config_id]).encode()).hexdigest()
    return f"msg_{line[:32]}_{version}"


@dataclass(frozen=True, slots=True)
class PostRequest:
    """One POST. Everything but the URL is kept out of its repr."""

    url: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What must not be kept of an answer that says the request again."""

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
        """`event` for the receiver that `config` names, signed at `now`, in seconds since the epoch.

        `protocol` is the version of A2A that the subscriber spoke. To one of 0.3 the task is sent as a whole, as that
        version's agents do: `event` must be the snapshot then.

        Raises:
            ValueError: the protocol can't say this event, or `delivery_id` can't be signed.
        """
        legacy = is_legacy_version(protocol)
        body = _legacy_body(event) if legacy else _body(event)
        headers = {
            "Content-Type": LEGACY_JSON if legacy else A2A_JSON,
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            **_authentication(config),
            **signer.headers(delivery_id, int(now), body),
        }
        secrets = (config.authentication.credentials, config.token, *_secrets_of(config.url))
        return cls(config.url, headers, body, tuple(secret for secret in secrets if secret))


def _authentication(config: TaskPushNotificationConfig) -> dict[str, str]:
    """The headers that the config asks for. A scheme without credentials says nothing that could be sent."""
    headers = {}
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["Authorization"] = f"{auth.scheme} {auth.credentials}"
    if config.token and not is_secret(config.token):
        headers["X-A2A-Notification-Token"] = config.token
    return headers


def _secrets_of(url: str) -> list[str]:
    """What of `url` may be a secret, as it is sent and as it is read: path and query, and single parts of them.

    Short ones are none: they would take words out of an answer.
    """
    path, query = urlsplit(url)[2:4]
    wholes = (path, unquote(path), query, unquote(query))
    parts = (*path.split("/"), *unquote(path).split("/"), *query.split("&"), *(value for _, value in parse_qsl(query)))
    found = [whole for whole in wholes if len(whole) >= SHORTEST_WHOLE]
    return list(dict.fromkeys(found + [part for part in parts if len(part) >= SHORTEST_PART]))


def _body(event: Event) -> bytes:
    response = StreamResponse.FromString(encode(event))
    try:
        # sorted: a map of protobuf's has another order in each process, and a repeat is the same to the letter
        return json.dumps(MessageToDict(response), separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    except SerializeToJsonError as e:  # a number in metadata that JSON has not
        raise ValueError(f"no JSON: {e}") from None


def _legacy_body(event: Event) -> bytes:
    if not isinstance(event, Task):
        kind = "message" if isinstance(event, Message) else "part of a task"
        raise ValueError(f"A2A 0.3 sends the task as a whole to webhooks, and no {kind}")
    return to_compat_task(event).model_dump_json(by_alias=True, exclude_none=True).encode()
