"""A push-notification config as it is kept: what its client asked for, how it spoke, and what it wants to hear of."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskPushNotificationConfig, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from ..lifecycle import Event, is_interrupted, is_terminal


class Wanted(StrEnum):
    """What a client can ask to be told of. The task as a whole, which begins a log, counts as its status."""

    STATUS = "status"
    TERMINAL = "terminal"
    """Of status events only those that end the task or make it wait for its client."""
    ARTIFACTS = "artifacts"


EVERYTHING = frozenset({Wanted.STATUS, Wanted.ARTIFACTS})


@dataclass(frozen=True, slots=True)
class Subscription:
    """One config of one task. `protocol` is the version of A2A its client spoke: it is answered in that."""

    config: TaskPushNotificationConfig = field(repr=False)
    protocol: str = "1.0"
    wanted: frozenset[Wanted] = EVERYTHING

    def wants(self, event: Event) -> bool:
        """Whether `event`, as streams show it, is to be posted."""
        match event:
            case TaskArtifactUpdateEvent():
                return Wanted.ARTIFACTS in self.wanted
            case Task() | TaskStatusUpdateEvent():
                state = event.status.state
                ends = is_terminal(state) or is_interrupted(state)
                return Wanted.STATUS in self.wanted or (ends and Wanted.TERMINAL in self.wanted)
            case Message():
                return Wanted.STATUS in self.wanted
        return False

    def without_secrets(self) -> TaskPushNotificationConfig:
        """The config as clients may read it back: without its token and its credentials."""
        shown = TaskPushNotificationConfig()
        shown.CopyFrom(self.config)
        shown.ClearField("token")
        shown.authentication.ClearField("credentials")
        if not shown.authentication.scheme:
            shown.ClearField("authentication")
        return shown

    def to_bytes(self) -> bytes:
        """The form that is sealed and kept."""
        kept = {"config": MessageToDict(self.config), "protocol": self.protocol, "wanted": sorted(self.wanted)}
        return json.dumps(kept, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, kept: bytes) -> Self:
        """What `to_bytes` wrote.

        Raises:
            ValueError: it is of a release that says more.
        """
        try:
            fields = json.loads(kept)
            config = ParseDict(fields["config"], TaskPushNotificationConfig())
            return cls(config, fields["protocol"], frozenset(map(Wanted, fields["wanted"])))
        except (KeyError, ParseError):
            raise ValueError("no config that this release can read") from None


def wanted_of(text: str) -> frozenset[Wanted]:
    """What the header ``A2A-Push-Events`` asks for, names with commas between; everything if it is empty.

    Raises:
        ValueError: a name in it is unknown; says which there are.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    try:
        return frozenset(map(Wanted, names)) or EVERYTHING
    except ValueError:
        known = ", ".join(Wanted)
        raise ValueError(f"names of events with commas between: {known}") from None
