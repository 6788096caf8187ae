"""An agent that can't take a message says so with one of A2A's own errors, as the SDK's servers let it."""

from __future__ import annotations

from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)

from ..lifecycle import Paused, Rejected
from ..lifecycle.outcomes import agent_message
from ..store.runs import Claim

REFUSALS = (
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
)
"""The errors that are about the client's message, so their text is for the client. Any other A2A error that an agent
raises is a failure like every exception: its text may be about anything."""


def refused(error: A2AError, claim: Claim) -> Paused | Rejected:
    """A first message that is refused rejects the task; a refused answer leaves it waiting as it did, to be answered
    again."""
    message = agent_message(error.message, claim.task.id, claim.task.context_id)
    return Rejected(message) if claim.paused_in is None else Paused(claim.paused_in, message)
