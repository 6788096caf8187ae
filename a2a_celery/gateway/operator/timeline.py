"""Timeline of one task: its steps, events, webhooks and relatives."""

from __future__ import annotations

import asyncio
from typing import Any

from ...acceptance.errors import not_found
from ...lifecycle import LogEntry
from ...store import AsyncStore, Keys
from ...store.log.pages import read_log
from ...store.runs.release import read_steps
from ...store.runs.step_durations import step_durations
from ...store.tasks.family import read_family
from ...store.webhooks.deliveries import read_delivery
from ...store.webhooks.push_configs import list_push_configs
from .reports import attempt_json, delivery_json, events_json, step_json, steps_json

MAX_STEPS = 200
MAX_EVENTS = 128
MAX_CHILDREN = 100
"""Maximum numbers of steps, of events at each end of the log, and of children in a timeline."""


async def timeline(store: AsyncStore, keys: Keys, task_id: str, trace_url: str | None) -> dict[str, Any]:
    """Return the timeline of a task, which may belong to any owner.

    Raises:
        TaskNotFoundError: The store has no such task. The task may be in the archive.
    """
    steps = await store.run(read_steps(keys, task_id))
    if steps is None:
        raise not_found(task_id)
    family, configs, entries = await asyncio.gather(
        store.run(read_family(keys, None, task_id)),
        store.run(list_push_configs(keys, None, task_id)),
        _ends_of_log(store, keys, task_id),
    )
    deliveries = await asyncio.gather(*(store.run(read_delivery(keys, task_id, config)) for config, _ in configs or ()))
    children = [] if family is None else [child.to_dict() for child in family.children[-MAX_CHILDREN:]]
    return {
        "task": steps_json(task_id, steps, trace_url),
        "steps": [step_json(duration) for duration in list(step_durations(steps))[-MAX_STEPS:]],
        "events": events_json(entries),
        "webhooks": [
            delivery_json(delivery) | {"attempts": [attempt_json(attempt) for attempt in delivery.attempts]}
            for delivery in deliveries
            if delivery is not None
        ],
        "parent": None if family is None or family.parent is None else family.parent.to_dict(),
        "children": children,
    }


async def _ends_of_log(store: AsyncStore, keys: Keys, task_id: str) -> list[LogEntry]:
    """Return the first and the last events of a task. Events in the middle of a long log are omitted."""
    first = await store.run(read_log(keys, task_id, 0, limit=MAX_EVENTS, resolve_blobs=False))
    entries = list(first.entries)
    if entries and entries[-1].version < first.version:
        last_version = max(entries[-1].version, first.version - MAX_EVENTS)
        last = await store.run(read_log(keys, task_id, last_version, limit=MAX_EVENTS, resolve_blobs=False))
        entries += last.entries
    return entries
