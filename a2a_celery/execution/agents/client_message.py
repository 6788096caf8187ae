"""Message with which the agent is called, the answers to its questions, and the refusal of a message."""

from __future__ import annotations

from a2a.types import Message
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)

from ...lifecycle import Paused, Rejection
from ...lifecycle.outcomes import agent_message
from ...store.runs.commands import Claim
from ..events.incoming import MessageSequence, recorded_messages
from ..events.queue import RunEventQueue
from ..open_run import OpenRun
from .journal import CURRENT

REFUSALS = (
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
)
"""A2A errors about the client's message, whose text is sent to the client. All other A2A errors are failures."""


def message_and_answers(claim: Claim) -> tuple[Message, MessageSequence]:
    """Return the message with which the agent is called, and the client's answers to `Turn.ask` so far."""
    answers = MessageSequence(recorded_messages(claim))
    if not claim.ask_count:
        return claim.request.message, answers
    history, (first, *later) = claim.task.history, claim.turn_messages
    for index in later:
        answers.add(index, history[index])
    return history[first], answers


def refuse(error: A2AError, run: OpenRun, events: RunEventQueue) -> Paused | Rejection:
    """Return the outcome of an A2A error about the client's message.

    A first message is rejected. After a refused answer, the task stays interrupted and waits for another answer. If the
    refused message answers `Turn.ask`, the next message answers the same question, unless a framework has recorded its
    own progress, which may include the refused answer.
    """
    claim = run.claim
    message = agent_message(error.message, claim.task.id, claim.task.context_id)
    if claim.interrupted_state is None:
        return Rejection(message)
    if claim.ask_count and not events.ended and CURRENT.get().remove_calls_after_answer():
        run.refuse_answer()
    return Paused(claim.interrupted_state, message)
