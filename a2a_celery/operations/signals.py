"""Signals to tasks, from Python, commands and requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..lifecycle.signals import Sender, encode_signal, require_signal_id, require_signal_name
from .errors import capitalized, invalid

FIELDS = ("name", "payload", "signalId")
"""Allowed fields of a signal in a request."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal to a task.

    Attributes:
        name: Name of the signal.
        content: Payload and sender; see `encode_signal`.
        signal_id: Id of the signal. A second signal with the same id has no effect.
    """

    name: str
    content: bytes
    signal_id: str

    @classmethod
    def of(cls, name: str, payload: Any, signal_id: str | None, sender: str) -> Signal:
        """Return a valid signal, with a new id if `signal_id` is None.

        Raises:
            ValueError: An argument is invalid. The message states the rule.
        """
        identity = str(uuid4()) if signal_id is None else require_signal_id(signal_id)
        return cls(require_signal_name(name), encode_signal(payload, Sender(sender)), identity)

    @classmethod
    def from_body(cls, body: Mapping[str, Any], sender: Sender) -> Signal:
        """Return the signal of `sender` in the body of a request.

        Raises:
            InvalidParamsError: A field is missing, unknown or invalid.
        """
        unknown = next((name for name in body if name not in FIELDS), None)
        if unknown is not None:
            raise invalid(str(unknown)[:64], "Unknown: a signal has name, payload and signalId.")
        with _field("name"):
            name = require_signal_name(body.get("name"))
        with _field("payload"):
            content = encode_signal(body.get("payload"), sender)
        with _field("signalId"):
            signal_id = require_signal_id(body.get("signalId", str(uuid4())))
        return cls(name, content, signal_id)


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Map a ValueError that is raised in the block to the error for an invalid field."""
    try:
        yield
    except ValueError as e:
        raise invalid(name, f"{capitalized(e)}.") from None
