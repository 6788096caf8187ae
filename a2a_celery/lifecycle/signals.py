"""Names, payloads and senders of signals, which other systems send to tasks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .json_values import json_bytes

MAX_PAYLOAD_BYTES = 65_536
"""Maximum size of a payload as JSON, in bytes."""

MAX_SIGNAL_ID = 256
"""Maximum length of the id of a signal, in characters."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


class Sender(StrEnum):
    """Kind of the sender of a signal.

    Attributes:
        CLIENT: The client that owns the task.
        OPERATOR: A person with access to the deployment, who uses the command.
        APP: Code of the app, which calls `A2A.signal`.
    """

    CLIENT = "client"
    OPERATOR = "operator"
    APP = "app"


@dataclass(frozen=True, slots=True)
class ReceivedSignal:
    """Signal that `Turn.wait_for` returns.

    Attributes:
        payload: Payload, a JSON value.
        sender: Kind of the sender: "app", "operator" or "client". The payload of a client is untrusted.
    """

    payload: Any
    sender: Sender


def require_signal_name(name: object) -> str:
    """Return `name` if it is a valid name of a signal.

    Raises:
        ValueError: `name` is not a string of 1 to 64 ASCII letters, digits and the characters ``_ . : -``.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"the name of a signal must have 1 to 64 ASCII letters, digits or _ . : -, not {name!r:.100}")
    return name


def kind_of_signal(name: str) -> tuple[str, str]:
    """Return the kind and the name of what a suspended run waits for.

    A task that resumes a run when it is final sends a signal with the name ``<kind>/<id of the task>``. The kind of any
    other signal is "signal".
    """
    kind, slash, task_id = name.partition("/")
    return (kind, task_id) if slash else ("signal", name)


def require_signal_id(signal_id: object) -> str:
    """Return `signal_id` if it is a valid id of a signal.

    Raises:
        ValueError: `signal_id` is not a string of 1 to `MAX_SIGNAL_ID` characters.
    """
    if not isinstance(signal_id, str) or not 1 <= len(signal_id) <= MAX_SIGNAL_ID:
        raise ValueError(
            f"the id of a signal must be a string of 1 to {MAX_SIGNAL_ID} characters, not {signal_id!r:.100}"
        )
    return signal_id


def encode_signal(payload: Any, sender: Sender) -> bytes:
    """Return the payload and the sender of a signal as JSON, the form in which the store and the journal contain them.

    Raises:
        ValueError: `payload` cannot be represented in JSON, or is larger than `MAX_PAYLOAD_BYTES`.
    """
    try:
        content = json_bytes(payload)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"the payload of a signal is not JSON: {e}") from None
    if len(content) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"the payload of a signal has {len(content):,} bytes as JSON, more than the maximum of "
            f"{MAX_PAYLOAD_BYTES:,}: store the data elsewhere and send its address"
        )
    return b'{"sender":"%s","payload":%s}' % (sender.value.encode(), content)


def decode_signal(content: bytes) -> ReceivedSignal:
    """Return the signal that `encode_signal` has encoded."""
    fields = json.loads(content)
    return ReceivedSignal(fields["payload"], Sender(fields["sender"]))
