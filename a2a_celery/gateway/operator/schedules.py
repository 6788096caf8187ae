"""Schedules of the app, each with its newest task and its skipped ticks."""

from __future__ import annotations

import asyncio
from typing import Any

from celery import Celery

from ...features.schedules.celery_task import ScheduleEntry, schedule_entries
from ...features.schedules.section import schedule_indexes, skipped_ticks
from ...store import AsyncStore, Keys
from ...store.admin.scan import newest_tasks
from .reports import iso_time, task_json


async def schedules(app: Celery, store: AsyncStore, keys: Keys) -> dict[str, Any]:
    """Return the schedules in the app's ``beat_schedule``. Entries that other schedulers store are not included."""
    reports = [_schedule(store, keys, entry) for entry in schedule_entries(app)]
    return {"schedules": await asyncio.gather(*reports)}


async def _schedule(store: AsyncStore, keys: Keys, entry: ScheduleEntry) -> dict[str, Any]:
    indexes = schedule_indexes(keys, entry.schedule)
    newest = newest_tasks(keys, indexes, limit=1)
    page, skipped_times = await asyncio.gather(store.run(newest), store.run(skipped_ticks(keys, entry.schedule)))
    return {
        "name": entry.schedule,
        "agent": entry.agent,
        "owner": entry.owner,
        "tenant": entry.tenant,
        "overlap": entry.overlap,
        "when": entry.when,
        "lastTask": task_json(page.tasks[0]) if page.tasks else None,
        "skippedTicks": len(skipped_times),
        "lastSkippedTick": iso_time(skipped_times[0]) if skipped_times else None,
    }
