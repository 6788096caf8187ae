"""Timeline of one task: its waits, steps, recorded results and events, and the parts of features."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...features.gateway import TIMELINE_PARTS
from ...lifecycle import LogEntry
from ...lifecycle.references import Scope
from ...operations.errors import not_found
from ...store import AsyncStore, Keys
from ...store.log.pages import read_log
from ...store.runs.activity_durations import activity_durations
from ...store.runs.journal import read_recorded
from ...store.runs.release import read_activities
from .reports import (
    events_json,
    recorded_json,
    step_json,
    steps_json,
    wait_json,
)
from .waits import waits_of

MAX_STEPS = 200
MAX_EVENTS = 128
"""Maximum numbers of steps, and of events at each end of the log, in a timeline."""

MAX_CONTENT = 2000
"""Maximum bytes of a recorded result in a timeline."""


async def timeline(store: AsyncStore, keys: Keys, task_id: str, owns: Callable[[Scope], bool]) -> dict[str, Any]:
    """Return the timeline of a task, which may belong to any owner.

    Args:
        store: The store.
        keys: Keys of the deployment.
        task_id: Id of the task.
        owns: Function that returns True if the operator owns the tasks of a scope. The timeline of such a task contains
            the names of its artifacts and the beginnings of the arguments and results of its recorded calls.

    Raises:
        TaskNotFoundError: The store has no such task. The task may be in the archive.
    """
    steps = await store.run(read_activities(keys, task_id))
    if steps is None:
        raise not_found(task_id)
    is_owner = owns(steps.scope)
    parts, entries, recorded = await asyncio.gather(
        asyncio.gather(*(part(store, keys, task_id) for part in TIMELINE_PARTS)),
        _ends_of_log(store, keys, task_id),
        store.run(read_recorded(keys, task_id, max_content=MAX_CONTENT if is_owner else 0)),
    )
    accepted_us = entries[0].recorded_us if entries else 0
    return {
        "task": steps_json(task_id, steps) | {"isOwner": is_owner},
        "steps": [step_json(duration) for duration in list(activity_durations(steps))[-MAX_STEPS:]],
        "waits": [wait_json(wait) for wait in waits_of(entries, steps)],
        "recorded": recorded_json(recorded, accepted_us, is_owner=is_owner),
        "recordedCount": recorded.count,
        "events": events_json(entries, is_owner=is_owner),
        **{name: value for part in parts for name, value in part.items()},
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
