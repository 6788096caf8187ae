"""Ends of turns whose agent stopped early, at a token limit or by a content filter."""

from __future__ import annotations

from collections.abc import Collection

from a2a.types import TaskStatus, TaskStatusUpdateEvent

from ..errors import ConfigError
from ..lifecycle.outcomes import agent_message
from ..lifecycle.states import COMPLETED, FAILED

STOP_REASON = "stopReason"
"""Metadata key of the framework's reason for an early stop."""


class EarlyStops:
    """Ends of turns that stopped early: COMPLETED, or FAILED for the reasons in `fail_on`.

    Raises:
        ConfigError: `fail_on` has a reason that is not in `known`. If `known` is None, any string is allowed.
    """

    def __init__(self, fail_on: Collection[str], known: Collection[str] | None) -> None:
        reasons = [fail_on] if isinstance(fail_on, str) else fail_on
        wrong = next((one for one in reasons if not isinstance(one, str) or one not in (known or (one,))), None)
        if isinstance(fail_on, str) or wrong is not None:
            choices = f"some of {', '.join(sorted(known))}" if known else "reasons as the framework writes them"
            raise ConfigError(f"fail_on = {fail_on!r}: a list or a set with {choices}")
        self._fail_on = frozenset(fail_on)

    def event(self, reason: str, task_id: str, context_id: str) -> TaskStatusUpdateEvent:
        """Return the final status of a turn that stopped for `reason`."""
        event = TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=TaskStatus(state=COMPLETED))
        self.apply(event, reason)
        return event

    def apply(self, event: TaskStatusUpdateEvent, reason: str) -> None:
        """Record in `event`, the final status of a turn, that the turn stopped for `reason`."""
        event.metadata.update({STOP_REASON: reason})
        if reason in self._fail_on:
            event.status.state = FAILED
            text = f"The agent stopped early: {reason}."
            event.status.message.CopyFrom(agent_message(text, event.task_id, event.context_id))
