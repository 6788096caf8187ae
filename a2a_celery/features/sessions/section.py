"""Sessions in the store. A claim reads the session of its context, and checkpoints and the end of a run save it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from ...lifecycle.references import RunRef, Scope, quote_key_part
from ...store import Keys
from ...store.runs.commands import EndRefused, RunLost
from ...store.verbs import Reply, Sections, parsed_by, section, verb


@dataclass(frozen=True, slots=True)
class SavedSession:
    """Session that a run reads.

    Attributes:
        version: Number of times that the session was saved.
        state: Saved state, or b"".
        resumed: True if an earlier run of the same turn saved the session, in this task or in one that was
            resubmitted as this task.
    """

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class SavedSince(EndRefused):
    """Conflict with another run that has saved the session as `version`. Nothing was written."""

    version: int


@section(Path(__file__).with_suffix(".lua"))
class SessionSection(NamedTuple):
    """Session of the context of a run, as the section of ``claim_run``, ``suspend_run``, ``settle_run`` and
    ``checkpoint``. Only the last two save a state.

    Attributes:
        prefix: Prefix of the keys of sessions.
        version: Version from which the state was derived.
        state: State to save, or b"" to only extend the lifetime of the saved state.
        fingerprint: Fingerprint of the secret that seals the state, or "" if the state is not sealed.
        sealed_with: Key of the list of values that the secret seals, or "".
        secrets: Key of the secrets, or "".
    """

    prefix: str
    version: int = 0
    state: bytes = b""
    fingerprint: str = ""
    sealed_with: str = ""
    secrets: str = ""

    def __repr__(self) -> str:
        """Leave out the state, which may be confidential."""
        return f"SessionSection(version={self.version})"

    @classmethod
    def of(cls, keys: Keys, version: int = 0, state: bytes = b"", fingerprint: str = "") -> Self:
        """Return the section that saves a state, or that saves none."""
        secret = (fingerprint, keys.sealed_with(fingerprint), keys.secrets) if fingerprint else ()
        return cls(session_prefix(keys), version, state, *secret)

    def parse(self, task_id: str, reply: Sequence[bytes]) -> SavedSession | SavedSince | None:
        """Parse the value of the section's ``claimed`` or the reply of its ``check``, or return None for any other
        reply."""
        match reply:
            case [b"session", version, state, is_own]:
                return SavedSession(int(version), state, is_own == b"1")
            case [b"conflict", version]:
                return SavedSince(int(version))
        return None


def session_prefix(keys: Keys) -> str:
    """Return the prefix of the keys of sessions."""
    return f"{keys.prefix}:session:"


def session_key(keys: Keys, scope: Scope, context_id: str) -> str:
    """Return the key of the session of a context. ``section.lua`` lists the fields of the hash.

    The hash expires one retention period after the last save of the session, or the last start or end of a run of the
    context. If a run is suspended, the lifetime is extended by the duration of the wait.
    """
    return f"{session_prefix(keys)}{scope}:{quote_key_part(context_id)}"


@verb
def checkpoint(
    keys: Keys, ref: RunRef, *, token: str, confirmed: int, sections: Sections
) -> Reply[SavedSince | RunLost | bool]:
    """Save the session of a claimed run, unless the store has lost any of the `confirmed` records of the run.

    Returns:
        True if the session was saved, or the reason for the refusal.
    """

    def parse(reply: Sequence[bytes]) -> SavedSince | RunLost | bool:
        if reply[0] == b"lost":
            return RunLost.of(reply)
        return parsed_by(sections, ref.task_id, reply) or True

    return Reply(parse)
