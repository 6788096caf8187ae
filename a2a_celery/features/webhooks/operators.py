"""Deliveries to webhooks in the operator's API."""

from __future__ import annotations

import asyncio
from typing import Any

from ...gateway.operator import audit
from ...gateway.operator.operator_request import OperatorRequest
from ...gateway.operator.reports import iso
from ...operations.errors import not_found
from ...store import AsyncStore, Keys
from ...telemetry.names import Action
from .deliveries import Attempt, Delivery, read_delivery, replay_delivery, scan_deliveries
from .push_configs import list_push_configs


async def list_webhooks(request: OperatorRequest) -> dict[str, Any]:
    """Return a page of the webhooks with pending deliveries or, with ``state=dead``, of the webhooks whose delivery
    was given up."""
    is_dead = request.http.query_params.get("state") == "dead"
    page = await request.store.run(scan_deliveries(request.keys, dead=is_dead, cursor=request.cursor()))
    return {"webhooks": [delivery_json(delivery) for delivery in page.deliveries], "next": page.cursor}


async def replay_webhook(request: OperatorRequest) -> dict[str, Any]:
    """Make the failed events of a webhook due, so that a watcher posts them again."""
    task_id, config_id = request.task_id, request.http.path_params["config"]
    outcome = await request.store.run(replay_delivery(request.keys, task_id, config_id))
    delivery = await request.store.run(read_delivery(request.keys, task_id, config_id))
    fields = {"task": task_id, "webhook": config_id}
    audit.record(Action.DELIVERY_REPLAYED, request.operator, f"task {task_id}", outcome, **fields)
    if outcome == "missing" or delivery is None:
        raise not_found(task_id)
    return delivery_json(delivery) | {"replayed": outcome == "replayed"}


async def webhooks_of_task(store: AsyncStore, keys: Keys, task_id: str) -> dict[str, Any]:
    """Return the deliveries to the webhooks of a task, with their attempts."""
    configs = await store.run(list_push_configs(keys, None, task_id))
    deliveries = await asyncio.gather(*(store.run(read_delivery(keys, task_id, config)) for config, _ in configs or ()))
    webhooks = [
        delivery_json(delivery) | {"attempts": [attempt_json(attempt) for attempt in delivery.attempts]}
        for delivery in deliveries
        if delivery is not None
    ]
    return {"webhooks": webhooks}


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Return the state of the deliveries to a webhook, without the webhook's address and the receiver's response."""
    failure = {name: delivery.failure[name] for name in ("reason", "status") if name in delivery.failure}
    times = {
        "failingSince": delivery.first_failed_us,
        "nextTry": 0 if delivery.died_us or delivery.is_leased else delivery.due_us,
        "givenUpAt": delivery.died_us,
    }
    return {
        "task": delivery.task_id,
        "id": delivery.config_id,
        "agent": delivery.agent,
        "state": delivery.state,
        "delivered": delivery.delivered,
        "lastEvent": delivery.version,
        "failures": delivery.failures,
        **{name: iso(at_us) for name, at_us in times.items() if at_us},
        **failure,
    }


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt to post to a webhook."""
    return {
        "at": iso(attempt.at_us),
        "event": attempt.post,
        "outcome": attempt.outcome,
        "status": attempt.status,
        "latencyMs": attempt.latency_ms,
        "reason": attempt.reason,
    }
