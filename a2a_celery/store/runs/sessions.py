"""Stored session: the state that an agent keeps for a context, saved by one run at a time.

The state is opaque to the store. It is sealed if there is a secret, see `crypto.sealing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..keys import Keys, Scope
from ..operation import Argument


@dataclass(frozen=True, slots=True)
class SavedSession:
    """Session as a run reads it.

    Attributes:
        version: number of saves; 0 if the session was never saved.
        state: saved state, or b"".
        resumed: True if an earlier run of the same turn saved it, also if that was a run of the dead letter from which
            the task was requeued.
    """

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    resumed: bool = False

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> SavedSession:
        """Parse the session in the reply of ``claim_run``."""
        if not reply:
            return cls()
        version, state, resumed = reply
        return cls(int(version), state, resumed == b"1")


@dataclass(frozen=True, slots=True)
class SessionState:
    """State to save.

    Attributes:
        version: version of the session that the state was derived from.
        state: new state, or b"" to only extend the life of the saved one.
        fingerprint: fingerprint of the secret that the state is sealed with, or "".
    """

    scope: Scope
    context_id: str
    version: int
    state: bytes = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SavedSince:
    """Another run has saved the session, which is at `version`. Nothing was written."""

    version: int


def session_arguments(keys: Keys, session: SessionState | None) -> list[Argument]:
    """Return the arguments of ``save_session`` in scripts/lib."""
    if session is None:
        return ["", 0, "", "", "", ""]
    return [
        keys.session(session.scope, session.context_id),
        session.version,
        session.state,
        session.fingerprint,
        keys.sealed_with(session.fingerprint) if session.fingerprint else "",
        keys.secrets,
    ]
