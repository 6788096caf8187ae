"""Verification and parsing of push notifications.

Verification does not use the ``standardwebhooks`` library, which supports only a single secret and a fixed tolerance.
The tests sign notifications with the library.

Source: A2A specification 4.3.3 and 13.2; Standard Webhooks, "Verifying webhook authenticity".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from a2a.types import Message, StreamResponse, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import Parse, ParseError

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import A2ACeleryError, ConfigError
from ..lifecycle import Event, EventId
from .event_parser import parse_event, to_json
from .public_keys import PublicKeys

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOKEN = "x-a2a-notification-token"

SECRET_PREFIX = "whsec_"
SCHEME = "v1,"
"""Prefix of HMAC-SHA256 signatures. Signatures of unknown schemes are ignored."""
PUBLIC_SCHEME = "v1a,"
"""Prefix of Ed25519 signatures."""

TOLERANCE = 300.0
"""Maximum difference between a signature's time and the local clock, in seconds. Each attempt is signed again."""

MAX_BYTES = 10 * 1024 * 1024
"""Maximum size of a notification's body in bytes, equal to a gateway's default limit for requests."""

_ID_FORM = re.compile(r"(?P<subscription>[A-Za-z0-9_-]{1,200})_(?P<event>[1-9][0-9]{0,14}(-[0-9]{1,16})?)")
_PING_FORM = re.compile(r"[A-Za-z0-9_-]{1,200}_ping-[A-Za-z0-9]{1,64}")
_TIMESTAMP_FORM = re.compile(r"[0-9]{1,12}")


class NotificationRefused(A2ACeleryError):
    """Error for a request that this receiver cannot handle as a notification. The error's text contains no secret,
    signature or token, so it may be sent to the client.

    Attributes:
        status: HTTP status of the response. The status is never 410, because the sender would then stop all deliveries
            to the webhook.
    """

    status = 400
    """HTTP status of the response. The status is never 410, because the sender would then stop all deliveries."""


class MalformedNotification(NotificationRefused):
    """Error for a missing or invalid header or body."""


class NotAuthentic(NotificationRefused):
    """Error for a signature, a token or an authorization that does not match."""

    status = 401


class TimestampOutOfRange(NotAuthentic):
    """Error for a notification that was signed too long ago or in the future. The notification was replayed, or a clock
    is wrong."""


class PublicKeysUnavailable(NotificationRefused):
    """Error for a notification whose signatures cannot be verified, because the sender's public keys have not been
    fetched yet. The sender retries."""

    status = 503

    def __init__(self) -> None:
        super().__init__("The public keys of the sender are not known yet.")


class Ping(NotificationRefused):
    """Authentic test ping, which contains no event. The response has the status 204."""

    status = 204

    def __init__(self) -> None:
        super().__init__("The notification is a test ping.")


class NotificationTooLarge(NotificationRefused):
    """Error for a body that is larger than the receiver accepts."""

    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"A notification may have at most {max_bytes} bytes.")


@dataclass(frozen=True, slots=True, repr=False)
class Notification:
    """Event of a task, as received by one webhook.

    Attributes:
        id: Id of the event, the same on every attempt. If the post is not signed, a unique id of the post.
        subscription_id: Id shared by all events of one task to one webhook, or "" if the post is not signed.
        version: Number of the event in its task's log. The version increases within a subscription, with gaps for
            events that the webhook does not receive. An equal or lower version with a later `recorded_us` replaces an
            event that the sender's store has lost. 0 if the post is not signed.
        recorded_us: Time at which the event was recorded, in microseconds since 1970, or 0 if unknown.
        timestamp: Time at which this post was signed, in seconds since 1970. If the post is not signed, the time at
            which it was received.
        event: The event: the SDK's Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent or Message.
    """

    id: str
    subscription_id: str
    version: int
    timestamp: int
    event: Event
    recorded_us: int = 0

    def __repr__(self) -> str:
        return f"Notification(id={self.id!r}, task_id={self.task_id!r}, event={type(self.event).__name__})"

    @property
    def event_id(self) -> EventId:
        """Id of the event within its task."""
        return EventId(self.version, self.recorded_us)

    @property
    def task_id(self) -> str:
        """Id of the task, or "" for a message without a task."""
        return self.event.id if isinstance(self.event, Task) else self.event.task_id

    def to_dict(self) -> dict[str, Any]:
        """Serialize the notification to a JSON object for `from_dict`."""
        kind = next(name for name, of in _EVENT_TYPES.items() if isinstance(self.event, of))
        event = to_json(StreamResponse(**{kind: self.event}))  # type: ignore[arg-type]
        return {
            "id": self.id,
            "subscription_id": self.subscription_id,
            "version": self.version,
            "recorded_us": self.recorded_us,
            "timestamp": self.timestamp,
            "event": event,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Notification:
        """Deserialize the output of `to_dict`.

        Raises:
            ValueError: `data` is not a notification.
        """
        try:
            body = json.dumps(data["event"]).encode()
            event, recorded_us = _event_in(body), data.get("recorded_us", 0)
            return cls(data["id"], data["subscription_id"], data["version"], data["timestamp"], event, recorded_us)
        except (KeyError, TypeError, NotificationRefused):
            raise ValueError("not a notification as Notification.to_dict writes it") from None


_EVENT_TYPES = {
    "task": Task,
    "status_update": TaskStatusUpdateEvent,
    "artifact_update": TaskArtifactUpdateEvent,
    "message": Message,
}
"""Event types by the fields of StreamResponse."""


NO_EVENT = "The body has none of task, message, statusUpdate and artifactUpdate."


class Verifier:
    """Verifier of posted notifications.

    A post needs one valid signature, made with a secret or a private key. A post without Standard Webhooks headers is
    accepted if its A2A token equals one of the secrets, because some servers send the token instead of a signature.
    Without secrets and public keys, signatures are not checked, and a post needs the `token`, the `authorization`, or
    both.

    Args:
        secrets: Shared secrets. A signature made with any secret is accepted, so that secrets can be rotated. A secret
            is a string of ``whsec_`` and base64, or the key as bytes.
        tolerance: Maximum difference in seconds between a signature's time, past or future, and the local clock.
        token: Required A2A token (X-A2A-Notification-Token), or None if the token is not checked.
        authorization: Required Authorization header, for example "Bearer …", or None if the header is not checked.
        public_keys: Keys of Ed25519 signatures (``v1a``). If the keys are fetched from a URL, use `verify_async`.
        max_bytes: Maximum size of a body in bytes.
        clock: Source of time, for tests.

    Raises:
        ConfigError: No secret, key, token or authorization is set, or a secret is invalid. The message does not contain
            the secret.
    """

    def __init__(
        self,
        secrets: Sequence[str | bytes] = (),
        *,
        tolerance: float = TOLERANCE,
        token: str | None = None,
        authorization: str | None = None,
        public_keys: PublicKeys | None = None,
        max_bytes: int = MAX_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        proof = secrets or token or authorization or public_keys
        if isinstance(secrets, str | bytes) or not proof or "" in (token, authorization):
            raise ConfigError(
                "secrets must be a list of at least one secret; for servers that do not sign, pass a token or "
                "credentials (authorization) that are not empty"
            )
        if public_keys is not None and not isinstance(public_keys, PublicKeys):
            raise ConfigError(
                "public_keys must be a PublicKeys: PublicKeys(['whpk_…']) or PublicKeys(jwks_url='https://…')"
            )
        self._keys = [_key(secret, number) for number, secret in enumerate(secrets, start=1)]
        self._tokens = [secret if isinstance(secret, bytes) else _encode_header(secret) for secret in secrets]
        self._tolerance = tolerance
        self._expected = {
            name: value for name, value in ((TOKEN, token), ("authorization", authorization)) if value is not None
        }
        self._public_keys = public_keys
        self._schemes = ({"v1": "secret"} if self._keys else {}) | ({"v1a": "key"} if public_keys is not None else {})
        self._clock = clock
        self.max_bytes = max_bytes

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notification:
        """Verify a request and return its notification.

        Args:
            headers: Headers of the request, with names in upper or lower case.
            body: Body exactly as received. The signature does not match JSON that was parsed and serialized again.

        Raises:
            Ping: The request is an authentic test ping.
            NotificationRefused: The request is not a valid notification. The subclass and the message give the reason.
        """
        if len(body) > self.max_bytes:
            raise NotificationTooLarge(self.max_bytes)
        fields = {name.lower(): value for name, value in headers.items()}
        expects_signature = bool(self._keys) or self._public_keys is not None
        if not expects_signature or not any(fields.get(name) for name in (ID, TIMESTAMP, SIGNATURE)):
            return self._without_signature(fields, body)
        for name in (ID, TIMESTAMP, SIGNATURE):
            if not fields.get(name):
                raise MalformedNotification(f"The header {name} is missing.")
        identity = _ID_FORM.fullmatch(fields[ID])
        if identity is None and not _PING_FORM.fullmatch(fields[ID]):
            raise MalformedNotification(f"The header {ID} does not have the form <subscription>_<version>.")
        if not _TIMESTAMP_FORM.fullmatch(fields[TIMESTAMP]):
            raise MalformedNotification(f"The header {TIMESTAMP} is not a whole number of seconds since 1970.")

        self._require_signature(fields, body)
        self._require_now(int(fields[TIMESTAMP]))
        self._require_expected(fields)
        if identity is None:
            raise Ping
        event_id = EventId.parse(identity["event"])
        timestamp = int(fields[TIMESTAMP])
        return Notification(
            fields[ID], identity["subscription"], event_id.version, timestamp, _event_in(body), event_id.recorded_us
        )

    async def verify_async(self, headers: Mapping[str, str], body: bytes) -> Notification:
        """Verify a request as `verify` does, and fetch public keys when needed.

        Raises:
            NotificationRefused: See `verify`.
            PublicKeysUnavailable: No public key is known yet, and no secret matches.
        """
        if self._public_keys is None or len(body) > self.max_bytes:
            return self.verify(headers, body)
        await self._public_keys.refresh()
        try:
            return self.verify(headers, body)
        except NotAuthentic as e:
            if isinstance(e, TimestampOutOfRange) or not await self._public_keys.refresh(is_unknown=True):
                raise
        return self.verify(headers, body)

    def _without_signature(self, fields: Mapping[str, str], body: bytes) -> Notification:
        """Parse a notification from a server that sends the push config's token or credentials instead of a
        signature."""
        if self._keys or self._public_keys is not None:
            if not fields.get(TOKEN) or not self._keys:
                raise MalformedNotification(f"The header {ID} is missing.")
            if not any(hmac.compare_digest(_encode_header(fields[TOKEN]), token) for token in self._tokens):
                raise NotAuthentic(f"The header {TOKEN} is not the expected one.")
        self._require_expected(fields)
        if _PING_FORM.fullmatch(fields.get(ID, "")):
            raise Ping
        return Notification(uuid4().hex, "", 0, int(self._clock.time()), _foreign_event_in(body))

    def _require_expected(self, fields: Mapping[str, str]) -> None:
        for name, value in self._expected.items():
            if not hmac.compare_digest(_encode_header(fields.get(name, "")), _encode_header(value)):
                raise NotAuthentic(f"The header {name} is not the expected one.")

    def _require_signature(self, fields: Mapping[str, str], body: bytes) -> None:
        signed_content = f"{fields[ID]}.{fields[TIMESTAMP]}.".encode() + body
        expected = [base64.b64encode(hmac.digest(key, signed_content, "sha256")) for key in self._keys]
        received_signatures = _signatures(fields[SIGNATURE], SCHEME) if self._keys else []
        theirs_by_key = _signatures(fields[SIGNATURE], PUBLIC_SCHEME) if self._public_keys is not None else []
        if not received_signatures and not theirs_by_key:
            schemes = " or ".join(self._schemes)
            raise NotAuthentic(f"The header {SIGNATURE} has no signature of the scheme {schemes}.")
        if any(hmac.compare_digest(own, _encode_header(their)) for own in expected for their in received_signatures):
            return
        if self._public_keys is not None and theirs_by_key:
            if self._public_keys.verify(signed_content, theirs_by_key):
                return
            if self._public_keys.is_unavailable:
                raise PublicKeysUnavailable
        key_types = " or ".join(self._schemes.values())
        raise NotAuthentic(f"No signature of this id, time and body was made with a known {key_types}.")

    def _require_now(self, timestamp: int) -> None:
        age = self._clock.time() - timestamp
        if abs(age) > self._tolerance:
            time = f"{age:.0f} s ago" if age > 0 else f"{-age:.0f} s in the future"
            raise TimestampOutOfRange(f"Signed {time}; {self._tolerance:.0f} s are allowed: check both clocks.")


def _signatures(header: str, scheme: str) -> list[str]:
    return [entry.removeprefix(scheme) for entry in header.split() if entry.startswith(scheme)]


def _encode_header(header: str) -> bytes:
    """Encode a header, including the surrogates that some servers leave in headers."""
    return header.encode(errors="surrogatepass")


def _key(secret: str | bytes, number: int) -> bytes:
    if isinstance(secret, bytes):
        key = secret
    else:
        if not secret.startswith(SECRET_PREFIX):
            raise ConfigError(
                f"secret {number}: a string must begin with {SECRET_PREFIX}; pass the key itself as bytes"
            )
        encoded_key = secret.removeprefix(SECRET_PREFIX)
        try:
            key = base64.b64decode(encoded_key + "=" * (-len(encoded_key) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"secret {number}: what follows {SECRET_PREFIX} is not base64") from None
    if not key:
        raise ConfigError(f"secret {number} is empty")
    return key


def _event_in(body: bytes) -> Event:
    try:
        response = Parse(body, StreamResponse(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError):
        raise MalformedNotification("The body is not the JSON of an A2A StreamResponse.") from None
    kind = response.WhichOneof("payload")
    if kind is None:
        raise MalformedNotification(NO_EVENT)
    event: Event = getattr(response, kind)
    return event


def _foreign_event_in(body: bytes) -> Event:
    """Parse the event of any server: A2A 1.0 or 0.3, with or without the enclosing StreamResponse."""
    try:
        event = parse_event(json.loads(body))
    except (ValueError, RecursionError):
        raise MalformedNotification("The body is not JSON.") from None
    if event is None:
        raise MalformedNotification(NO_EVENT)
    return event
