"""Limits of tasks from the settings, and the errors of refusals, for example of a message that exceeds a limit."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from a2a.utils.errors import A2AError, TaskNotCancelableError, UnsupportedOperationError

from ..features import LIMIT_TEXTS as FEATURE_LIMITS
from ..lifecycle.refusals import Reason, Refusal
from ..settings import Settings
from ..store.tasks.commands import TaskLimits
from .errors import MAX_ID_LENGTH, LimitExceededError, capitalized, invalid, not_found

ANSWERS, CALLS, REQUESTS, STREAMS = "answers", "calls", "requests", "streams"
"""Names of the limits that gateways enforce. The scripts of the store define the names of the other limits."""

MAX_WAIT = 60
"""Maximum Retry-After of a rejected message, in seconds. The store can only estimate the wait."""

LIMIT_TEXTS = {
    REQUESTS: "The rate limit of requests is reached",
    "concurrent": "The limit of {} running tasks is reached",
    **FEATURE_LIMITS,
    "webhooks": "The limit of {} push notification configs is reached: delete one",
    STREAMS: "The limit of {} open streams is reached: close one",
    CALLS: "The limit of {} open gRPC calls is reached: close one",
    ANSWERS: "The limit of {} answers that are checked at the same time is reached",
    "queued": "The limit of {} queued messages of this agent is reached",
    "owner_bytes": "The limit of {} stored bytes is reached: this message does not fit",
    "memory": "The memory of this service is nearly full",
}


def task_limits_of(settings: Settings, agents: Iterable[str]) -> TaskLimits | None:
    """Return the limits for new messages in a deployment that serves `agents`, or None if no limit is set."""
    agent_names = tuple(agents)
    limits = TaskLimits(
        agent_names,
        settings.owner_max_concurrent_tasks,
        settings.agent_max_queue,
        settings.owner_max_stored_bytes,
    )
    return limits if limits != TaskLimits(agent_names) else None


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
