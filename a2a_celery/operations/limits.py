"""Errors of refusals, for example of a message that exceeds a limit."""

from __future__ import annotations

from math import ceil

from a2a.utils.errors import A2AError, TaskNotCancelableError, UnsupportedOperationError

from ..features import sections
from ..lifecycle.refusals import Reason, Refusal
from .errors import MAX_ID_LENGTH, LimitExceededError, capitalized, invalid, not_found

ANSWERS, BODIES, CALLS, READS, REQUESTS, STREAMS = "answers", "bodies", "calls", "reads", "requests", "streams"
"""Names of the limits that gateways enforce. The scripts of the store and their sections define the other names."""

MAX_WAIT = 60
"""Maximum Retry-After of a rejected message, in seconds. The store can only estimate the wait."""

LIMIT_TEXTS = {
    REQUESTS: "The rate limit of requests is reached",
    STREAMS: "The limit of {} open streams is reached: close one",
    CALLS: "The limit of {} open gRPC calls is reached: close one",
    ANSWERS: "The limit of {} answers that are checked at the same time is reached",
    READS: "The limit of {} reads that wait at the same time is reached",
    BODIES: "The limit of {} bytes of requests that arrive at the same time is reached",
    "memory": "The memory of this service is nearly full",
    **sections.LIMIT_TEXTS,
}
"""Text of the error by the name of the limit."""

FIELDS = {
    Reason.SAME_MESSAGE_ID: "message.message_id",
    Reason.SAME_TASK_ID: "task_id",
    Reason.OTHER_CONTEXT: "message.context_id",
}
"""Field of the request that is invalid, by the reason of a refusal."""


def error_of(refusal: Refusal) -> A2AError:
    """Return the error of a refusal for an A2A client. The error of most reasons is UnsupportedOperationError."""
    task_id, text = refusal.task_id, capitalized(refusal)
    match refusal.reason:
        case Reason.MISSING:
            return not_found(task_id)
        case Reason.LIMITED:
            limit, seconds = refusal.data["limit"], min(MAX_WAIT, max(1, ceil(refusal.data["retry_in"])))
            return error_of_limit(limit, LIMIT_TEXTS[limit].format(refusal.data["maximum"]), seconds)
        case Reason.NOT_CANCELABLE:
            return TaskNotCancelableError(text, data={"taskId": task_id})
        case reason if reason in FIELDS:
            return invalid(FIELDS[reason], f"{text}.")
        case _:
            return UnsupportedOperationError(text, data={"taskId": task_id[:MAX_ID_LENGTH]})


def error_of_limit(limit: str, text: str, seconds: int) -> LimitExceededError:
    """Return the error for an exceeded limit.

    Args:
        limit: Name of the limit.
        text: Text of the error without the retry delay.
        seconds: Seconds after which the caller may retry.
    """
    text = f"{text}. Retry in {seconds} s."
    return LimitExceededError(text, data={"limit": limit, "retryAfter": str(seconds)})
