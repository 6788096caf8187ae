"""Names and payloads of signals, which other systems send to tasks."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_PAYLOAD_BYTES = 65_536
"""Maximum size of a payload as JSON, in bytes."""

MAX_SIGNAL_ID = 256
"""Maximum length of the id of a signal, in characters."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


def require_signal_name(name: object) -> str:
    """Return `name` if it is a valid name of a signal.

    Raises:
        ValueError: `name` is not a string of 1 to 64 ASCII letters, digits and the characters ``_ . : -``.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"the name of a signal must have 1 to 64 ASCII letters, digits or _ . : -, not {name!r:.100}")
    return name


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


def encode_payload(payload: Any) -> bytes:
    """Return `payload` as JSON.

    Raises:
        ValueError: `payload` cannot be represented in JSON, or is larger than `MAX_PAYLOAD_BYTES`.
    """
    try:
        content = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"the payload of a signal is not JSON: {e}") from None
    if len(content) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"the payload of a signal has {len(content):,} bytes as JSON, more than the maximum of "
            f"{MAX_PAYLOAD_BYTES:,}: store the data elsewhere and send its address"
        )
    return content
