"""Reports of the app's schedules for operators, each with the newest task and the skipped ticks of the schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.schedules import crontab
from celery.schedules import schedule as interval

from ...gateway.operator.operator_request import OperatorRequest
from ...gateway.operator.reports import iso_time, task_json
from ...store import AsyncStore, Keys
from ...store.admin.scan import newest_tasks, state_indexes
from .celery_task import NAME
from .section import schedule_index, skipped_ticks

DEFAULTS = {"owner": "", "tenant": "", "overlap": "skip"}


async def report_schedules(request: OperatorRequest) -> dict[str, Any]:
    """Return the schedules in the app's ``beat_schedule``. Entries that other schedulers store are not included."""
    return {"schedules": await reports(request.app, request.store, request.keys)}


async def reports(app: Celery, store: AsyncStore, keys: Keys) -> list[dict[str, Any]]:
    """Return the reports of the schedules in the app's ``beat_schedule``."""
    return await asyncio.gather(*(_report(store, keys, entry) for entry in _entries(app)))


def _entries(app: Celery) -> Iterator[dict[str, str]]:
    """Yield the fields of the entries that submit messages, one entry for each schedule."""
    names_seen: set[str] = set()
    for entry in app.conf.beat_schedule.values():
        arguments = entry.get("kwargs") if isinstance(entry, Mapping) and entry.get("task") == NAME else None
        if not isinstance(arguments, Mapping):
            continue
        values = DEFAULTS | {name: value for name, value in arguments.items() if isinstance(value, str)}
        if {"schedule", "agent"} <= values.keys() and values["schedule"] not in names_seen:
            names_seen.add(values["schedule"])
            fields = {name: values[name] for name in ("agent", *DEFAULTS)}
            yield {"name": values["schedule"], **fields, "when": text_of(entry.get("schedule"))}


async def _report(store: AsyncStore, keys: Keys, entry: Mapping[str, str]) -> dict[str, Any]:
    newest = newest_tasks(keys, state_indexes(schedule_index(keys, entry["name"])), limit=1)
    page, skipped_times = await asyncio.gather(store.run(newest), store.run(skipped_ticks(keys, entry["name"])))
    return {
        **entry,
        "lastTask": task_json(page.tasks[0]) if page.tasks else None,
        "skippedTicks": len(skipped_times),
        "lastSkippedTick": iso_time(skipped_times[0]) if skipped_times else None,
    }


def text_of(schedule: Any) -> str:
    """Return a Celery schedule as text: the five fields of a crontab, "every 30 s" for an interval, or the ``str`` of
    any other schedule."""
    if isinstance(schedule, crontab):
        return str(schedule).removeprefix("<crontab: ").partition(" (")[0]
    if isinstance(schedule, interval):
        schedule = schedule.run_every
    if isinstance(schedule, timedelta):
        schedule = schedule.total_seconds()
    return f"every {schedule:g} s" if isinstance(schedule, int | float) else str(schedule)
