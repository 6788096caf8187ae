"""A pause that lasts too long."""

from __future__ import annotations

from a2a.types import TaskStatusUpdateEvent

from ..lifecycle.outcomes import agent_message, status_event
from ..lifecycle.states import FAILED
from ..store.runs import Claim

NO_ANSWER = "No answer came in time."
"""What a client hears that left its task waiting for longer than `input_timeout`."""


def unanswered(claim: Claim) -> TaskStatusUpdateEvent:
    """What ends the pause of a task whose client does not answer."""
    task = claim.task
    return status_event(task.id, task.context_id, FAILED, agent_message(NO_ANSWER, task.id, task.context_id))
