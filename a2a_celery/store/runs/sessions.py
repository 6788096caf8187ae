"""What the store keeps of a session: an agent's own state of a context, saved by one run at a time.

What a state says is opaque here: it comes as text, sealed where there is a secret (see `crypto.sealing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..keys import Keys, Scope
from ..operation import Argument


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session as a run finds it: `state` was saved `version` times; 0: never, and it is empty.

    `resumed`: an earlier run of this very turn saved it, or of the turn that this one repeats as a requeued task.
    """

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    resumed: bool = False

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> SavedSession:
        """The session that ``claim_run`` answers with."""
        if not reply:
            return cls()
        version, state, resumed = reply
        return cls(int(version), state, resumed == b"1")


@dataclass(frozen=True, slots=True)
class SessionState:
    """A state to be saved, made from `version` of the session; b"": it is as it was saved, and lives on.

    `fingerprint` is that of the secret it is sealed with, "" for none.
    """

    scope: Scope
    context_id: str
    version: int
    state: bytes = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SavedSince:
    """Another run has saved the session: it is at `version`. Nothing was written."""

    version: int


def session_arguments(keys: Keys, session: SessionState | None) -> list[Argument]:
    """A session, as ``save_session`` in scripts/lib takes it."""
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
