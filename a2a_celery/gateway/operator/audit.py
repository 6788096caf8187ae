"""Audit log of the operator's API: one line for each action of an operator, with its result."""

from __future__ import annotations

import logging

from ...lifecycle.refusals import Reason, Refusal
from ...operations.errors import MAX_ID_LENGTH
from ...telemetry.logs import about
from ...telemetry.names import Action

logger = logging.getLogger(__name__)

DETAILS = ("signal", "agent")
"""Fields that the text of a line contains after the result."""


def record(
    action: Action, operator: str, target: str, result: str, *, new_task: str | None = None, **fields: str | None
) -> None:
    """Log an action of an operator.

    Args:
        action: Action that the operator requested.
        operator: Name of the operator, or "" without authentication.
        target: Kind and id of the task or worker on which the operator acted.
        result: Result of the action in one word.
        new_task: Id of the task that the action has created, or None. It is the field `task` of the line.
        fields: Further fields, such as the ids of the target.
    """
    values = {name: value and value[:MAX_ID_LENGTH] for name, value in fields.items()}
    details = {name: values[name] for name in DETAILS if values.get(name)}
    if new_task is not None:
        values["task"] = details["new task"] = new_task
    extra = about(action, "", operator=operator, result=result, **values)
    by = f"the operator {operator!r}" if operator else "an unauthenticated operator"
    suffix = "".join(f", {name} {value!r}" for name, value in details.items())
    logger.info("%s: %s by %s: %s%s", target[: 2 * MAX_ID_LENGTH], action, by, result, suffix, extra=extra)


def refused(refusal: Refusal) -> str:
    """Return the result of a refused action."""
    return "missing" if refusal.reason is Reason.MISSING else "refused"
