"""Reasons for which a task ended without a result, from the texts and the metadata of its final status."""

from __future__ import annotations

from enum import StrEnum

from a2a.types import TaskState, TaskStatus

from . import outcomes
from .own_metadata import NAMESPACE, REFERENCE
from .states import CANCELED, FAILED, REJECTED

CANCELED_BY = "canceledBy"
"""Metadata key of a CancelTask request. Its value is `EndReason.WITH_RUN` if the task is cancelled with the run that
started it. Requests of clients do not have the key."""


class EndReason(StrEnum):
    """Reason for which a task is FAILED, REJECTED or CANCELED."""

    EXCEPTION = "exception"  # the agent raised an exception
    INVALID_RESPONSE = "invalid_response"  # A2A cannot represent the agent's response
    LOST = "lost"  # the worker was lost
    TIME_LIMIT = "time_limit"  # the run exceeded a time limit or an idle limit
    NO_ANSWER = "no_answer"  # the client did not answer in time
    BLOBS_UNREACHABLE = "blobs_unreachable"  # the store for large parts was unreachable
    NOT_PUBLISHED = "not_published"  # the app prevents the publication of the run
    EXPIRED = "expired"  # the run did not begin in time
    UNKNOWN_AGENT = "unknown_agent"  # the worker does not have the agent
    UNREADABLE = "unreadable"  # the worker could not read the Celery message
    REFUSED = "refused"  # the agent raised Celery's Reject
    BY_AGENT = "agent"  # the agent itself ended the task in this state
    BY_CLIENT = "client"  # the client cancelled the task
    BY_OPERATOR = "operator"  # an operator cancelled the task, or revoked its run
    WITH_RUN = "parent"  # the task was cancelled with the run or the task that started it


_REASONS = {
    outcomes.AGENT_FAILED: EndReason.EXCEPTION,
    outcomes.INVALID_RESPONSE: EndReason.INVALID_RESPONSE,
    outcomes.WORKER_LOST: EndReason.LOST,
    outcomes.OUT_OF_TIME: EndReason.TIME_LIMIT,
    outcomes.NO_ANSWER: EndReason.NO_ANSWER,
    outcomes.OUT_OF_REACH: EndReason.BLOBS_UNREACHABLE,
    outcomes.NOT_PUBLISHED: EndReason.NOT_PUBLISHED,
    outcomes.NOT_BEGUN_IN_TIME: EndReason.EXPIRED,
    outcomes.AGENT_UNKNOWN: EndReason.UNKNOWN_AGENT,
    outcomes.MESSAGE_UNREADABLE: EndReason.UNREADABLE,
    outcomes.AGENT_REFUSED: EndReason.REFUSED,
    outcomes.CANCELED_BY_CLIENT: EndReason.BY_CLIENT,
    outcomes.CANCELED_BY_OPERATOR: EndReason.BY_OPERATOR,
    outcomes.CANCELED_WITH_RUN: EndReason.WITH_RUN,
}


def end_reason(state: TaskState, status: TaskStatus) -> tuple[EndReason | None, str]:
    """Return the reason for which a task ended in `state`, and the reference of the failure in a worker's log, or "".

    The reason is None for a live or completed task. An agent that sends one of the texts of this package receives its
    reason.
    """
    if state not in (FAILED, REJECTED, CANCELED):
        return None, ""
    parts = status.message.parts
    reason = _REASONS.get(parts[0].text if parts else "", EndReason.BY_AGENT)
    metadata = status.message.metadata.fields
    return reason, metadata[NAMESPACE + REFERENCE].string_value if NAMESPACE + REFERENCE in metadata else ""
