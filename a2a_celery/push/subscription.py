"""Subscriptions: stored push-notification configs, each with its protocol version and its kinds of events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskPushNotificationConfig, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from ..lifecycle import Event, is_interrupted, is_terminal


class EventFilter(StrEnum):
    """Kind of event to which a client can subscribe. The initial task of a log counts as a status event."""

    STATUS = "status"
    TERMINAL = "terminal"
    """Only status events with a terminal or interrupted state."""
    ARTIFACTS = "artifacts"


ALL_EVENTS = frozenset({EventFilter.STATUS, EventFilter.ARTIFACTS})


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a config to the events of its task.

    Attributes:
        config: Push-notification config.
        protocol: A2A version of the client that created the config.
        event_filters: Kinds of events to which the client subscribes.
    """

    config: TaskPushNotificationConfig = field(repr=False)
    protocol: str = "1.0"
    event_filters: frozenset[EventFilter] = ALL_EVENTS

    def includes(self, event: Event) -> bool:
        """Return True if the subscription includes `event`. A client of A2A 0.3 receives only the last chunk of an
        artifact."""
        match event:
            case TaskArtifactUpdateEvent():
                return EventFilter.ARTIFACTS in self.event_filters and (self.protocol == "1.0" or event.last_chunk)
            case Task() | TaskStatusUpdateEvent():
                state = event.status.state
                if EventFilter.STATUS in self.event_filters:
                    return True
                return EventFilter.TERMINAL in self.event_filters and (is_terminal(state) or is_interrupted(state))
            case Message():
                return EventFilter.STATUS in self.event_filters
        return False

    def without_secrets(self) -> TaskPushNotificationConfig:
        """Return the config without token and credentials, for clients."""
        config = TaskPushNotificationConfig()
        config.CopyFrom(self.config)
        config.ClearField("token")
        config.authentication.ClearField("credentials")
        if not config.authentication.scheme:
            config.ClearField("authentication")
        return config

    def to_bytes(self) -> bytes:
        """Serialize the subscription. The caller encrypts the result before storing it."""
        config = MessageToDict(self.config)
        fields = {"config": config, "protocol": self.protocol, "event_filters": sorted(self.event_filters)}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Deserialize the result of `to_bytes`.

        Raises:
            ValueError: `data` lacks fields that this release requires, for example because another release wrote it.
        """
        try:
            fields = json.loads(data)
            config = ParseDict(fields["config"], TaskPushNotificationConfig())
            return cls(config, fields["protocol"], frozenset(map(EventFilter, fields["event_filters"])))
        except (KeyError, ParseError):
            raise ValueError("this release cannot read the config") from None


def parse_event_filters(text: str) -> frozenset[EventFilter]:
    """Return the kinds of events in the header ``A2A-Push-Events``, or all kinds if the header is empty.

    Raises:
        ValueError: The header contains an unknown kind. The message lists the known kinds.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    try:
        return frozenset(map(EventFilter, names)) or ALL_EVENTS
    except ValueError:
        raise ValueError(f"must be a comma-separated list of {', '.join(EventFilter)}") from None
