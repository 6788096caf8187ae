"""Outcomes of the exceptions that an agent raises: signals, A2A errors and uncaught questions."""

from __future__ import annotations

import logging

from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)

from ..errors import AgentSignal, AuthRequired, Failed, InputRequired, Rejected
from ..lifecycle import Completed, Delegated, Failure, Outcome, Paused, Rejection
from ..lifecycle.outcomes import AGENT_FAILED, agent_message
from ..lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED
from ..store.runs.commands import Claim
from .agents.adapters import Adapter
from .events.queue import RunEventQueue

logger = logging.getLogger(__name__)


async def run_agent(adapter: Adapter, claim: Claim, events: RunEventQueue) -> Outcome:
    """Run the agent. Return its outcome, or the question of `Turn.ask` if other code caught it.

    Frameworks convert exceptions of tools to text, and a task group converts them to an exception group.

    Raises:
        AgentSignal: The agent ended its run. Its signal takes precedence over a caught question.
        BaseException: The agent failed without a question.
    """
    try:
        outcome = await adapter.run(claim, events)
    except AgentSignal:
        raise
    except BaseException as error:
        question = _question(claim, events) or _signal_in(error, claim)
        if question is None or events.stopping:
            raise
        logger.info("run %s ends with its question; its agent raised %r", claim.ref.name, error)
        return question
    if isinstance(outcome, Completed | Delegated):
        return _question(claim, events) or outcome
    return outcome


def _question(claim: Claim, events: RunEventQueue) -> Outcome | None:
    parts = events.settlement.question
    return None if parts is None else outcome_of(InputRequired(parts=parts), claim)


def _signal_in(error: BaseException, claim: Claim) -> Outcome | None:
    """Return the outcome of the first signal in an exception group, or None."""
    if isinstance(error, AgentSignal):
        return outcome_of(error, claim)
    if not isinstance(error, BaseExceptionGroup):
        return None
    outcomes = (_signal_in(one, claim) for one in error.exceptions)
    return next((outcome for outcome in outcomes if outcome is not None), None)


def outcome_of(signal: AgentSignal, claim: Claim) -> Outcome:
    """Return the outcome that an agent requested by raising `signal`."""
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
        case Rejected():
            return Rejection(message)
        case Failed():
            more = signal.parts[1:] if str(signal) else signal.parts
            return Failure(str(signal) or AGENT_FAILED, parts=tuple(more))
        case _:
            return Completed()


REFUSALS = (
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
)
"""Errors about the client's message, whose text is for the client. Any other A2A error of an agent is a failure."""


def refused(error: A2AError, claim: Claim) -> Paused | Rejection:
    """Return the outcome of an A2A error about the client's message.

    A first message is rejected. After a refused answer, the task stays interrupted and waits for another answer.
    """
    message = agent_message(error.message, claim.task.id, claim.task.context_id)
    return Rejection(message) if claim.interrupted_state is None else Paused(claim.interrupted_state, message)
