"""The verb about pauses that nobody answers."""

from __future__ import annotations

from .keys import Keys
from .operation import Operation, script


def end_pauses(keys: Keys, *, limit: int) -> Operation[int]:
    """Fails up to `limit` tasks whose pause has lasted too long; gives how many were due."""
    return Operation(script("end_pauses"), [keys.pauses], [keys.prefix, limit], int)
