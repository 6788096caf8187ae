"""Kinds of replies to a message, for assertions."""

from __future__ import annotations

from typing import TypeGuard

from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.store.tasks.replies import Accepted


def begins(reply: object) -> TypeGuard[Accepted]:
    """Return True if the message has begun a run."""
    return isinstance(reply, Accepted) and reply.run is not None


def waits(reply: object) -> TypeGuard[Accepted]:
    """Return True if the message waits until the open run ends."""
    return isinstance(reply, Accepted) and reply.run is None and reply.preceding_turns > 0


def is_delivered(reply: object) -> TypeGuard[Accepted]:
    """Return True if the open run can read the message, or is interrupted by it."""
    return isinstance(reply, Accepted) and reply.run is None and reply.preceding_turns == 0


def reason_of(reply: object) -> Reason | None:
    """Return the reason of a refusal, or None if the reply is no refusal."""
    return reply.reason if isinstance(reply, Refusal) else None


def is_limited(reply: object) -> TypeGuard[Refusal]:
    """Return True if the message or signal was refused because a limit is reached."""
    return reason_of(reply) is Reason.LIMITED


def limit_of(reply: object) -> tuple[str, int] | None:
    """Return the name and the maximum of the limit that is reached, or None if the reply is another."""
    return (reply.data["limit"], reply.data["maximum"]) if is_limited(reply) else None
