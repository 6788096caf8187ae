"""Features in gateways: the operations that belong to features, and what the timeline of a task shows of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from a2a.types import GetTaskRequest

from ..store import AsyncStore, Keys
from .dead_letters.operators import list_dead_letters, requeue_dead_letter, requeue_page
from .families.gateway import SCHEMAS, get_task_family, relatives
from .feature import ClientOperation, OperatorRoute
from .schedules.report import report_schedules

CLIENT_OPERATIONS: Sequence[ClientOperation] = (
    ClientOperation(
        "GET",
        "/families/{id}",
        "GetTaskFamily",
        "Return the parent and the children of a task.",
        GetTaskRequest,
        SCHEMAS,
        get_task_family,
    ),
)
"""Operations of the HTTP+JSON binding."""

TIMELINE_PARTS: Sequence[Callable[[AsyncStore, Keys, str], Awaitable[dict[str, Any]]]] = (relatives,)
"""Functions that return further fields of the timeline of a task, which may belong to any owner."""

OPERATOR_ROUTES: Sequence[OperatorRoute] = (
    OperatorRoute("GET", "/dead-letters", "OperatorListDeadLetters", list_dead_letters),
    OperatorRoute("POST", "/dead-letters:requeue", "OperatorRequeueAll", requeue_page),
    OperatorRoute("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", requeue_dead_letter),
    OperatorRoute("GET", "/schedules", "OperatorListSchedules", report_schedules),
)
"""Routes of the operator's API. A path with a verb comes before a more general path that would also match."""
