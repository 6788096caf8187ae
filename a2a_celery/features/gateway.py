"""Features in the operator's API of gateways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..store import AsyncStore, Keys
from .dead_letters.operators import list_dead_letters, requeue_dead_letter, requeue_page
from .feature import OperatorRoute
from .schedules.report import report_schedules
from .webhooks.operators import list_webhooks, replay_webhook, webhooks_of_task

OPERATOR_ROUTES: Sequence[OperatorRoute] = (
    OperatorRoute("GET", "/dead-letters", "OperatorListDeadLetters", list_dead_letters),
    OperatorRoute("POST", "/dead-letters:requeue", "OperatorRequeueAll", requeue_page),
    OperatorRoute("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", requeue_dead_letter),
    OperatorRoute("GET", "/webhooks", "OperatorListWebhooks", list_webhooks),
    OperatorRoute("POST", "/webhooks/{id}/{config:path}:replay", "OperatorReplay", replay_webhook),
    OperatorRoute("GET", "/schedules", "OperatorListSchedules", report_schedules),
)
"""Routes of the operator's API. A path with a verb comes before a more general path that would also match."""

TIMELINES: Mapping[str, Callable[[AsyncStore, Keys, str], Awaitable[Sequence[Any]]]] = {"webhooks": webhooks_of_task}
"""Functions that return what features add to the timeline of a task, by the name in JSON."""
