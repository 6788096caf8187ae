"""Webhook operations that ``test_operations`` runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from a2a_celery.features.webhooks.config_section import NewPushConfig
from a2a_celery.features.webhooks.deliveries import (
    Attempt,
    DeliveryCursor,
    abandon_delivery,
    acquire_due_deliveries,
    acquire_requested_posts,
    delivery_metrics,
    postpone_delivery,
    read_delivery,
    record_delivery,
    replay_delivery,
    request_post,
    scan_deliveries,
    settle_requested_post,
)
from a2a_celery.features.webhooks.push_configs import delete_push_config, list_push_configs, save_push_config
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import Keys, Operation
from a2a_celery.store.admin.start_check import secrets_in_use
from a2a_celery.store.runs.commands import claim_run
from tests.support.store.seeds import ANN, LEASE_US, Seeds

Make = Callable[[Keys, Seeds], Awaitable[Operation[Any]]]

PUSH = NewPushConfig("c", b"sealed", "f0")


async def _save_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.create_task(task_id="t")
    return save_push_config(keys, ANN, "t", PUSH)


async def acquire_cursor(keys: Keys, seeds: Seeds) -> DeliveryCursor:
    """Create task "t" with a push-notification config, and acquire the delivery cursor of the config."""
    await seeds.create_task(task_id="t")
    await seeds.store.run(save_push_config(keys, ANN, "t", PUSH))
    await seeds.store.run(claim_run(keys, RunRef("t", 1), token="token", runner="r", lease_us=LEASE_US, working=True))
    [cursor] = await seeds.store.run(acquire_due_deliveries(keys, limit=1, lease_us=LEASE_US))
    return cursor


async def _list_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return list_push_configs(keys, ANN, "t")


async def _delete_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return delete_push_config(keys, ANN, "t", "c")


async def _secrets(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return secrets_in_use(keys)


async def _acquire_deliveries(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return acquire_due_deliveries(keys, limit=1, lease_us=LEASE_US)


async def _record(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return record_delivery(keys, await acquire_cursor(keys, seeds), EventId(2), lease_us=LEASE_US)


async def _postpone(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return postpone_delivery(keys, await acquire_cursor(keys, seeds), after_us=9, counts=True, failure={"status": 500})


async def _give_up(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return abandon_delivery(keys, await acquire_cursor(keys, seeds), failure={"reason": "no"})


async def _replay(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(await _give_up(keys, seeds))
    return replay_delivery(keys, "t", "c")


async def _read_delivery(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return read_delivery(keys, "t", "c")


async def _scan_deliveries(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return scan_deliveries(keys)


async def _delivery_metrics(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(await _give_up(keys, seeds))
    return delivery_metrics(keys)


async def _request_post(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await acquire_cursor(keys, seeds)
    return request_post(keys, ANN, "t", "c", "ping-1")


async def request_ping(keys: Keys, seeds: Seeds) -> tuple[DeliveryCursor, list[str]]:
    """Request a ping for task "t". Return the acquired delivery cursor and the ids of the requested posts."""
    await seeds.store.run(await _request_post(keys, seeds))
    [post] = await seeds.store.run(acquire_requested_posts(keys, limit=1, lease_us=LEASE_US))
    return post


async def _acquire_requested_posts(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await request_ping(keys, seeds)
    return acquire_requested_posts(keys, limit=1, lease_us=LEASE_US)


async def _settle_requested_post(keys: Keys, seeds: Seeds) -> Operation[Any]:
    cursor, [post] = await request_ping(keys, seeds)
    return settle_requested_post(keys, cursor, post, Attempt(post, "delivered", 200, 9), after_us=0)


WEBHOOK_OPERATIONS: list[Make] = [
    _save_push, _list_push, _delete_push, _secrets, _acquire_deliveries, _record, _postpone, _give_up, _replay,
    _read_delivery, _scan_deliveries, _delivery_metrics,
    _request_post, _acquire_requested_posts, _settle_requested_post,
]  # fmt: skip
