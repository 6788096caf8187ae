"""What an agent asks for by raising."""

from __future__ import annotations

from ..errors import AgentSignal, AuthRequired, InputRequired
from ..errors import Failed as AgentFailed
from ..errors import Rejected as AgentRejected
from ..lifecycle import Completed, Failed, Outcome, Paused, Rejected
from ..lifecycle.outcomes import AGENT_FAILED, agent_message
from ..lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED
from ..store.runs import Claim


def outcome_of(signal: AgentSignal, claim: Claim) -> Outcome:
    """The outcome an agent asked for by raising `signal`."""
    message = None
    if signal.parts:
        message = agent_message("", claim.task.id, claim.task.context_id)
        del message.parts[:]
        message.parts.extend(signal.parts)
    match signal:
        case InputRequired():
            return Paused(INPUT_REQUIRED, message)
        case AuthRequired():
            return Paused(AUTH_REQUIRED, message)
        case AgentRejected():
            return Rejected(message)
        case AgentFailed():
            more = signal.parts[1:] if str(signal) else signal.parts
            return Failed(str(signal) or AGENT_FAILED, parts=tuple(more))
        case _:
            return Completed()
