"""Idempotency: a repeated message of an agent with an `idempotency_window` returns the first task or turn.

The feature uses ``features/families``: a message is a repeated message even if another task is its parent.

Source: A2A specification 3.3.1 (an agent may detect duplicates by the message id).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ...delays import is_number
from ...errors import ConfigError
from ..feature import Feature

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.types import SendMessageRequest

    from ...lifecycle.references import Scope
    from ...settings import Settings
    from ...store import Keys
    from .section import IdempotencyKey

MAX_WINDOW = 30 * 24 * 3600
"""Maximum `idempotency_window` in seconds."""


@dataclass(frozen=True, slots=True)
class Idempotency(Feature):
    """Idempotency of one agent.

    Attributes:
        window: Seconds for which a repeated message id returns the first task or turn.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"idempotency_window"})
    recognizes_repeats: ClassVar[bool] = True

    window: float

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return the idempotency of an agent, or None if `idempotency_window` is None or not set."""
        window = options.get("idempotency_window")
        if window is None:
            return None
        if not is_number(window) or not 0.001 <= window <= MAX_WINDOW:
            raise ConfigError(
                f"agent {agent!r}: idempotency_window = {window!r}: a number of seconds up to {MAX_WINDOW}, or None"
            )
        return cls(window)

    def check_settings(self, agent: str, settings: Settings) -> None:
        """Require that tasks are stored for the window."""
        if self.window > settings.retention:
            raise ConfigError(
                f"agent {agent!r}: idempotency_window = {self.window:g}: at most a2a_retention, "
                f"{settings.retention} seconds, because a repeated message returns the stored task"
            )

    def section_for_message(self, keys: Keys, scope: Scope, request: SendMessageRequest) -> IdempotencyKey:
        """Return the idempotency key of a message."""
        from .section import IdempotencyKey, message_digest  # noqa: PLC0415 -- protobuf

        return IdempotencyKey.of(
            keys, scope, request.message.message_id, message_digest(request), int(self.window * 1000)
        )
