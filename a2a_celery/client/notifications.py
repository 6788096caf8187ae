"""Whether a push notification is from who it says it is, and what it says.

The signature is checked here rather than by the ``standardwebhooks`` library, with which the tests sign: that one has a
fixed tolerance and a single secret, and what is no signature leaves it as an error of Python's.

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

from a2a.types import Message, StreamResponse, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import Parse, ParseError

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import A2ACeleryError, ConfigError
from ..lifecycle import Event
from .answers import json_of

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOKEN = "x-a2a-notification-token"

SECRET_PREFIX = "whsec_"
SCHEME = "v1,"
"""HMAC-SHA256; signatures by other schemes stand beside it and are passed over."""

TOLERANCE = 300.0
"""Seconds between the sender's clock and ours; each post is signed anew, also one that repeats."""

MAX_BYTES = 10 * 1024 * 1024
"""As much as a gateway reads of a request, unless told otherwise."""

_ID_FORM = re.compile(r"(?P<line>[A-Za-z0-9_-]{1,200})_(?P<version>[1-9][0-9]{0,14})")
_TIMESTAMP_FORM = re.compile(r"[0-9]{1,12}")


class NotificationRefused(A2ACeleryError):
    """A request that is no notification for us. The text may be sent back: no secret, signature or token is in it."""

    status = 400
    """The HTTP status that says so; none of them is 410, which would make the sender give up for good."""


class Malformed(NotificationRefused):
    """A header or the body is missing, or is not what it has to be."""


class NotAuthentic(NotificationRefused):
    """The signature or the token is not what our secrets say."""

    status = 401


class OutOfTime(NotAuthentic):
    """Signed too long ago, or in the future: a recording that is played again, or a clock that is wrong."""


class TooLarge(NotificationRefused):
    """The body has more bytes than are read."""

    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"A notification may have {max_bytes} bytes at most.")


@dataclass(frozen=True, slots=True)
class Notification:
    """One event of a task, as one webhook was told of it.

    Attributes:
        id: the same whenever this event comes again.
        line: the same for all events of one task to one webhook.
        version: the event's number in its task's log; rises within a line, with gaps where events are filtered out.
        timestamp: when this post was signed, in seconds since the epoch.
        event: the SDK's Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent or Message.
    """

    id: str
    line: str
    version: int
    timestamp: int
    event: Event

    @property
    def task_id(self) -> str:
        """The task it is about; empty for a message that belongs to none."""
        return self.event.id if isinstance(self.event, Task) else self.event.task_id

    def to_dict(self) -> dict[str, Any]:
        """The notification as JSON: what `from_dict` reads."""
        kind = next(name for name, of in _KINDS.items() if isinstance(self.event, of))
        event = json_of(StreamResponse(**{kind: self.event}))  # type: ignore[arg-type]
        return {"id": self.id, "line": self.line, "version": self.version, "timestamp": self.timestamp, "event": event}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Notification:
        """The notification that `to_dict` wrote.

        Raises:
            ValueError: `data` is something else.
        """
        try:
            body = json.dumps(data["event"]).encode()
            return cls(data["id"], data["line"], data["version"], data["timestamp"], _event_in(body))
        except (KeyError, TypeError, NotificationRefused):
            raise ValueError("not a notification as Notification.to_dict writes it") from None


_KINDS = {
    "task": Task,
    "status_update": TaskStatusUpdateEvent,
    "artifact_update": TaskArtifactUpdateEvent,
    "message": Message,
}
"""The events, by the fields of a StreamResponse."""


class Verifier:
    """Tells notifications from everything else that is posted to us.

    `secrets`: one that fits is enough, so that the old and the new one can both be good for a while; a text is
    ``whsec_`` and base64, bytes are the key itself. `tolerance` is in seconds. `token` is what was given as the
    push config's token, `authorization` what it makes of its authentication ("Bearer …"); None: not looked at.

    Raises:
        ConfigError: there is no secret, or one that can't be read; it is not repeated.
    """

    def __init__(
        self,
        secrets: Sequence[str | bytes],
        *,
        tolerance: float = TOLERANCE,
        token: str | None = None,
        authorization: str | None = None,
        max_bytes: int = MAX_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if isinstance(secrets, str | bytes) or not secrets:
            raise ConfigError("secrets is a list of one secret at least")
        self._keys = [_key(secret, number) for number, secret in enumerate(secrets, start=1)]
        self._tolerance = tolerance
        self._expected = {
            name: value for name, value in ((TOKEN, token), ("authorization", authorization)) if value is not None
        }
        self._clock = clock
        self.max_bytes = max_bytes

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notification:
        """The notification that a request with these headers, in any case, and this body is.

        `body` is what came over the wire: JSON that was parsed and written again has another signature.

        Raises:
            NotificationRefused: it is none; the classes below it say which kind of wrong, the text says what.
        """
        if len(body) > self.max_bytes:
            raise TooLarge(self.max_bytes)
        given = {name.lower(): value for name, value in headers.items()}
        for name in (ID, TIMESTAMP, SIGNATURE):
            if not given.get(name):
                raise Malformed(f"The header {name} is missing.")
        identity = _ID_FORM.fullmatch(given[ID])
        if identity is None:
            raise Malformed(f"The header {ID} is not of the form <line>_<version>.")
        if not _TIMESTAMP_FORM.fullmatch(given[TIMESTAMP]):
            raise Malformed(f"The header {TIMESTAMP} is not a whole number of seconds since 1970.")

        self._require_signature(given, body)
        self._require_now(int(given[TIMESTAMP]))
        for name, value in self._expected.items():
            if not hmac.compare_digest(_encoded(given.get(name, "")), _encoded(value)):
                raise NotAuthentic(f"The header {name} is not the expected one.")
        return Notification(
            given[ID], identity["line"], int(identity["version"]), int(given[TIMESTAMP]), _event_in(body)
        )

    def _require_signature(self, given: Mapping[str, str], body: bytes) -> None:
        signed = f"{given[ID]}.{given[TIMESTAMP]}.".encode() + body
        ours = [base64.b64encode(hmac.digest(key, signed, "sha256")) for key in self._keys]
        theirs = [
            _encoded(signature.removeprefix(SCHEME))
            for signature in given[SIGNATURE].split()
            if signature.startswith(SCHEME)
        ]
        if not theirs:
            raise NotAuthentic(f"The header {SIGNATURE} has no signature of the scheme v1.")
        if not any(hmac.compare_digest(own, their) for own in ours for their in theirs):
            raise NotAuthentic("No signature was made with a secret known here, over this id, time and body.")

    def _require_now(self, timestamp: int) -> None:
        age = self._clock.time() - timestamp
        if abs(age) > self._tolerance:
            when = f"{age:.0f} s ago" if age > 0 else f"{-age:.0f} s in the future"
            raise OutOfTime(f"Signed {when}; {self._tolerance:.0f} s are allowed: look at both clocks.")


def _encoded(header: str) -> bytes:
    """Any header as bytes; some servers leave half characters in them."""
    return header.encode(errors="surrogatepass")


def _key(secret: str | bytes, number: int) -> bytes:
    if isinstance(secret, bytes):
        key = secret
    else:
        if not secret.startswith(SECRET_PREFIX):
            raise ConfigError(f"secret {number}: a text begins with {SECRET_PREFIX}; give the key itself as bytes")
        encoded = secret.removeprefix(SECRET_PREFIX)
        try:
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"secret {number}: what follows {SECRET_PREFIX} is not base64") from None
    if not key:
        raise ConfigError(f"secret {number} is empty")
    return key


def _event_in(body: bytes) -> Event:
    try:
        response = Parse(body, StreamResponse(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError):
        raise Malformed("The body is not the JSON of an A2A StreamResponse.") from None
    kind = response.WhichOneof("payload")
    if kind is None:
        raise Malformed("The body has none of task, message, statusUpdate and artifactUpdate.")
    event: Event = getattr(response, kind)
    return event
