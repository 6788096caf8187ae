"""Audit log of the operator's API: one line for each action of an operator, with its result."""

from __future__ import annotations

import logging

from ...operations.errors import MAX_ID_LENGTH
from ...telemetry.logs import about
from ...telemetry.names import Action

logger = logging.getLogger(__name__)

DETAILS = {"signal": "signal", "agent": "agent", "new_task": "new task"}
"""Fields that the text of a line contains after the result, with their names in the text."""


def record(action: Action, operator: str, target: str, result: str, **fields: str | None) -> None:
    """Log an action of an operator.

    Args:
        action: Action that the operator requested.
        operator: Name of the operator, or "" without authentication.
        target: Kind and id of the task or worker on which the operator acted.
        result: Result of the action in one word.
        fields: Further fields, such as the ids of the target.
    """
    values = {name: value and value[:MAX_ID_LENGTH] for name, value in fields.items()}
    extra = about(action, "", operator=operator, result=result, **values)
    by = f"the operator {operator!r}" if operator else "an unauthenticated operator"
    details = values | ({"new_task": values.get("task")} if "requeued_from" in values else {})
    suffix = "".join(f", {text} {details[name]!r}" for name, text in DETAILS.items() if details.get(name))
    logger.info("%s: %s by %s: %s%s", target[: 2 * MAX_ID_LENGTH], action, by, result, suffix, extra=extra)
