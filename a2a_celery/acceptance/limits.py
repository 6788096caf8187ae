"""Limits of tasks from the settings, and the errors for exceeded limits."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from ..settings import Settings
from ..store.tasks.commands import TaskLimits
from ..store.tasks.results import Limited
from .errors import LimitExceededError

REQUESTS, STREAMS = "requests", "streams"
"""Names of the limits on requests and streams. The scripts of the store define the names of the other limits."""

MAX_WAIT = 60
"""Maximum Retry-After of a rejected message, in seconds. The store can only estimate the wait."""

LIMIT_TEXTS = {
    REQUESTS: "The rate limit of requests is reached",
    "concurrent": "The limit of {} running tasks is reached",
    "waiting": "The limit of {} tasks that wait for a worker is reached",
    "children": "The limit of {} live child tasks of one task is reached",
    "paused": "The limit of {} interrupted tasks is reached: answer or cancel one",
    "webhooks": "The limit of {} push notification configs is reached: delete one",
    STREAMS: "The limit of {} open streams is reached: close one",
    "queued": "The limit of {} queued messages of this agent is reached",
    "owner_bytes": "The limit of {} stored bytes is reached: this message does not fit",
    "store_bytes": "The storage of this service is full",
    "memory": "The memory of this service is nearly full",
}


def task_limits_of(settings: Settings, agents: Iterable[str]) -> TaskLimits | None:
    """Return the limits for new messages in a deployment that serves `agents`, or None if no limit is set."""
    agent_names = tuple(agents)
    limits = TaskLimits(
        agent_names,
        settings.owner_max_concurrent_tasks,
        settings.owner_max_waiting_tasks,
        settings.owner_max_paused_tasks,
        settings.agent_max_queue,
        settings.owner_max_stored_bytes,
        settings.store_max_bytes,
    )
    return limits if limits != TaskLimits(agent_names) else None


def limit_error(limited: Limited) -> LimitExceededError:
    """Return the error for a message that exceeds a limit."""
    seconds = min(MAX_WAIT, max(1, ceil(limited.retry_in)))
    return error_of_limit(limited.limit, LIMIT_TEXTS[limited.limit].format(limited.maximum), seconds)


def error_of_limit(limit: str, text: str, seconds: int) -> LimitExceededError:
    """Return the error for an exceeded limit.

    Args:
        limit: Name of the limit.
        text: Text of the error without the retry delay.
        seconds: Seconds after which the caller may retry.
    """
    text = f"{text}. Retry in {seconds} s."
    return LimitExceededError(text, data={"limit": limit, "retryAfter": str(seconds)})
