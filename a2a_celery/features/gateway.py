"""Features in the operator's API of gateways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..store import AsyncStore, Keys
from .dead_letters.operators import list_dead_letters, requeue_dead_letter, requeue_page
from .families.gateway import relatives
from .feature import OperatorRoute
from .schedules.report import report_schedules
from .webhooks.operators import list_webhooks, replay_webhook, webhooks_of_task

TIMELINE_PARTS: Sequence[Callable[[AsyncStore, Keys, str], Awaitable[dict[str, Any]]]] = (
    webhooks_of_task,
    relatives,
)
"""Functions that return further fields of the timeline of a task, which may belong to any owner."""

OPERATOR_ROUTES: Sequence[OperatorRoute] = (
    OperatorRoute("GET", "/dead-letters", "OperatorListDeadLetters", list_dead_letters),
    OperatorRoute("POST", "/dead-letters:requeue", "OperatorRequeueAll", requeue_page),
    OperatorRoute("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", requeue_dead_letter),
    OperatorRoute("GET", "/webhooks", "OperatorListWebhooks", list_webhooks),
    OperatorRoute("POST", "/webhooks/{id}/{config:path}:replay", "OperatorReplay", replay_webhook),
    OperatorRoute("GET", "/schedules", "OperatorListSchedules", report_schedules),
)
"""Routes of the operator's API. A path with a verb comes before a more general path that would also match."""
