"""The errors of this package. Their messages say what to do; none of them reaches a remote client as it is.

Three families: what an operator or developer set up wrong (`ConfigError`), what is out of reach right now
(`StoreUnavailable`, `BrokerUnavailable`, `ArchiveUnavailable`), and what an agent raises on purpose to end its run
(`AgentSignal`). The gateway translates to A2A errors in one place, ``gateway.protocol_errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from a2a.types import Part

__all__ = [
    "A2ACeleryError",
    "AgentSignal",
    "ArchiveUnavailable",
    "AuthRequired",
    "BlobsUnavailable",
    "BrokerUnavailable",
    "ConfigError",
    "Failed",
    "InputRequired",
    "Rejected",
    "SessionConflict",
    "SessionError",
    "StoreUnavailable",
]


class A2ACeleryError(Exception):
    """The base of every error this package raises itself."""


class ConfigError(A2ACeleryError):
    """A setting, a card or an agent can't be used as it is; raised at start, names the field and its value."""


class StoreUnavailable(A2ACeleryError):
    """Redis can't be reached or refuses to answer; the same call may succeed later."""


class BlobsUnavailable(StoreUnavailable):
    """The object store for large parts can't be reached, or lacks one; the same call may succeed later."""


class ArchiveUnavailable(A2ACeleryError):
    """The archive's database can't be reached, or does not take what it is given; ended tasks stay in the store."""


class BrokerUnavailable(A2ACeleryError):
    """The Celery broker did not take a message; the task stays in the store and is dispatched later."""


class RunNotTaken(BrokerUnavailable):
    """The broker is there, and did not take this run: its queue is full or wrong, say. It may take others."""


class SessionError(A2ACeleryError):
    """The state of a session cannot be saved or opened; the message says why."""


class SessionConflict(SessionError):
    """Another run of the context has saved the session since this one read it; nothing was saved."""


class AgentSignal(BaseException):
    """Base of the exceptions that an agent raises to end its run on purpose. Text and parts are for the client."""

    def __init__(self, text: str = "", *, parts: Sequence[Part] = ()) -> None:
        from a2a.types import Part  # noqa: PLC0415 -- not at import: most processes never raise an AgentSignal

        super().__init__(text)
        wrong = next((part for part in parts if not isinstance(part, Part)), None)
        if wrong is not None:
            raise TypeError(f"parts are a2a.types.Part, not {type(wrong).__name__}")
        self.parts: list[Part] = [*([Part(text=text)] if text else []), *parts]


class InputRequired(AgentSignal):
    """Ends the run in INPUT_REQUIRED; the client's next message to the task begins the next run.

    Not an `Exception`: frameworks catch every `Exception` of a tool and go on.
    """


class AuthRequired(AgentSignal):
    """Ends the run in AUTH_REQUIRED; the client's next message to the task begins the next run.

    Not an `Exception`, as `InputRequired`.
    """


class Rejected(AgentSignal, A2ACeleryError):
    """Ends the task in REJECTED: the agent won't do what it was asked."""


class Failed(AgentSignal, A2ACeleryError):
    """Ends the task in FAILED, with a text that is meant for the client."""
