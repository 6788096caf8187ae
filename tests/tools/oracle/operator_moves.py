"""Moves of deliverers, archivers, watchers and operators."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from a2a_celery.features.webhooks.deliveries import (
    Attempt,
    abandon_delivery,
    acquire_requested_posts,
    delivery_metrics,
    postpone_delivery,
    record_delivery,
    replay_delivery,
    request_post,
    settle_requested_post,
)
from a2a_celery.features.webhooks.push_configs import delete_push_config, read_push_config, save_push_config
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store.admin.archiving import (
    acquire_archivable,
    defer_archiving,
    read_archive_state,
    retry_refused,
    update_archive_backlog,
)
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.samples import HOUR, Sample, record_sample
from a2a_celery.store.admin.schema import PAGE, SCHEMA, STEPS, opening_operations, set_schema
from a2a_celery.store.admin.start_check import announce_watcher, announce_worker, secrets_in_use
from a2a_celery.store.admin.usage import read_memory
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.tasks.commands import (
    acquire_request,
)
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import ANN, LEASE_US
from tests.support.store.view import Record
from tests.tools.oracle.recorded_store import STEP_US
from tests.tools.oracle.recorder import Recorder


async def deliver_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Record attempts, lost events, skipped events and pauses of deliveries."""
    webhooks = Webhooks(world.seeds.store, world.keys)
    attempt = Attempt("1-1", "failed", 500, 12, "HTTP 500")
    await world.run(replay_delivery(world.keys, task_id, world.chance.choice("cd")))
    for cursor in await webhooks.lease_cursors(limit=3):
        if world.chance.random() < 0.3:
            other = replace(cursor, token="x")
            await world.run(postpone_delivery(world.keys, other, after_us=0, counts=True))
            await world.run(abandon_delivery(world.keys, other, failure={"reason": "no"}))
        match world.chance.randrange(5):
            case 0:
                event = EventId(cursor.version, 1)
                await world.run(record_delivery(world.keys, cursor, event, lease_us=LEASE_US))
            case 1:
                event = EventId(cursor.delivered + 1)
                operation = record_delivery(world.keys, cursor, event, lease_us=LEASE_US, posted=False, attempt=attempt)
                await world.run(operation)
            case 2 | 3:
                way: Any = world.chance.choice(["age", False, True])
                await world.run(
                    postpone_delivery(
                        world.keys,
                        cursor,
                        after_us=5 * STEP_US,
                        counts=way,
                        failure={"reason": "no"},
                        attempt=attempt,
                    )
                )
            case _:
                await world.run(abandon_delivery(world.keys, cursor, failure={"reason": "no"}, attempt=attempt))


async def request_posts(world: Recorder, task_id: str, r: Record) -> None:
    """Request posts of events and of pings, and send them."""
    config_id = world.chance.choice("cd")
    if world.chance.random() < 0.5:
        await world.run(save_push_config(world.keys, None, task_id, world.config(config_id)))
    page = await world.run(read_log(world.keys, task_id, 0))
    posts = [EventId(1, 1), *(entry.id for entry in page.entries), *(f"ping-{number}" for number in range(4))]
    for post in world.chance.sample(posts, min(5, len(posts))):
        await world.run(request_post(world.keys, None, task_id, config_id, post))
    for cursor, requested in await world.run(acquire_requested_posts(world.keys, limit=5, lease_us=LEASE_US)):
        attempt = world.chance.choice([None, Attempt(requested[0], "delivered", 200, 5)])
        await world.run(settle_requested_post(world.keys, cursor, requested[0], attempt, after_us=1))


async def configure_many(world: Recorder, task_id: str, r: Record) -> None:
    """Save more configs than a task may have, and delete them."""
    names = [f"c{number}" for number in range(11)]
    for name in names:
        await world.run(save_push_config(world.keys, None, task_id, world.config(name)))
    await world.continue_with(task_id, r, push=world.config("c12"))
    for name in names:
        await world.run(delete_push_config(world.keys, None, task_id, name))


async def configure_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Save a config at the owner's limit, and read configs."""
    for name in ("g", "h"):
        await world.run(save_push_config(world.keys, None, task_id, world.config(name, 1)))
    await world.run(read_push_config(world.keys, Scope.parse(r["scope"]), task_id, "g"))
    await world.run(delivery_metrics(world.keys))
    await world.run(secrets_in_use(world.keys))


async def archive_differently(world: Recorder, task_id: str, r: Record) -> None:
    """Acquire tasks for the archive, refuse one, and enable or disable the archive."""
    redis, keys = world.store.redis, world.keys
    for tag in await redis.zrange(keys.archive, 0, 0):
        await redis.zadd(keys.archive, {tag: 1})
    archiver = world.chance.choice(["one", "two"])
    await world.run(acquire_archivable(keys, archiver_id=archiver, limit=5, lease_ms=600_000))
    await world.run(defer_archiving(keys, task_id))
    if world.chance.random() < 0.5:
        await world.run(retry_refused(keys))
    if world.chance.random() < 0.2:
        await world.run(read_archive_state(keys, give_up=True))
    await world.run(update_archive_backlog(keys, "0"))


async def announce(world: Recorder, task_id: str, r: Record) -> None:
    """Announce a watcher and a worker, record a sample, and charge the bucket of an account."""
    keys, withdraws = world.keys, world.chance.random() < 0.3
    await world.run(announce_watcher(keys, "one", archives=False, withdraws=withdraws))
    await world.run(announce_worker(keys, "worker"))
    metrics, posts = await world.run(read_metrics(keys)), await world.run(delivery_metrics(keys))
    await world.run(record_sample(keys, HOUR, Sample.of(metrics, posts.posts, None)))
    world.chance.random()  # recorded sequences drew a number here
    for _ in range(2):
        await world.run(acquire_request(keys, ANN, per_second=0.001, burst=3))


async def open_store(world: Recorder, task_id: str, r: Record) -> None:
    """Open the store, set its schema and run the migrations."""
    opening = opening_operations(world.keys, archive=world.chance.random() < 0.2)
    result = None
    with suppress(StopIteration):
        while True:
            result = await world.run(opening.send(result))
    for previous in (0, SCHEMA):
        await world.run(set_schema(world.keys, previous, SCHEMA))
    for migration in STEPS:
        await world.run(migration.convert_page(world.keys, "0", PAGE, world.chance.random() < 0.5))
    world.client.run(read_memory())
