"""Features in gateways: the operations of the operator's API that belong to features."""

from __future__ import annotations

from collections.abc import Sequence

from .dead_letters.operators import list_dead_letters, requeue_dead_letter, requeue_page
from .feature import OperatorRoute
from .schedules.report import report_schedules

OPERATOR_ROUTES: Sequence[OperatorRoute] = (
    OperatorRoute("GET", "/dead-letters", "OperatorListDeadLetters", list_dead_letters),
    OperatorRoute("POST", "/dead-letters:requeue", "OperatorRequeueAll", requeue_page),
    OperatorRoute("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", requeue_dead_letter),
    OperatorRoute("GET", "/schedules", "OperatorListSchedules", report_schedules),
)
"""Routes of the operator's API. A path with a verb comes before a more general path that would also match."""
