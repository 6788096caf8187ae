"""Lists of stored tasks for operators, newest status first: open and ended tasks of one owner or one schedule, and
failed tasks of all owners."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from a2a.types import TaskState

from ...acceptance.errors import invalid
from ...store import AsyncStore, Keys, Scope
from ...store.admin.scan import Position, TaskSummary, newest_tasks
from ...store.tasks.listing import position_of, position_token
from ...store.tasks.schedules import skipped_ticks
from .reports import iso_time, task_json

PAGE = 50
INDEXES = 40
"""Maximum number of indexes that one script reads, so that a page for an owner with many agents does not delay other
commands."""

MAX_FAILURES = 200
"""Maximum number of failed tasks that are returned, which is the maximum length of `Keys.failures`."""

FIRST_PAGE = "0"
"""Cursor of the first page, as in the other lists of the operator's API."""

MAX_SKIPPED = 100
"""Maximum number of skipped ticks on a page."""

STATES = TaskState.keys()[1:]


async def stored_tasks(
    store: AsyncStore, keys: Keys, agents: Collection[str], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return a page of the tasks that match `query`. If `query` has a schedule but no state, skipped ticks are
    included.

    Args:
        agents: Agents whose tasks are returned if `query` contains no agent.
        query: Filters: either ``schedule``, or ``owner``, ``tenant`` and ``agent``. Both filters can be combined with
            ``state``. "" selects tasks without an owner or a tenant. ``cursor`` is `next` of the previous page; without
            it, or with "0", the first page is returned.

    Raises:
        InvalidParamsError: `query` has an unknown state, an invalid cursor, or a schedule together with an owner, a
            tenant or an agent.
    """
    prefixes = _prefixes(keys, agents, query)
    state = query.get("state", "")
    if state and state not in STATES:
        raise invalid("state", f"Send one of {', '.join(STATES)}.")
    states = [TaskState.Value(name) for name in ([state] if state else STATES)]
    page = await _page(store, keys, [f"{prefix}{number}" for prefix in prefixes for number in states], _position(query))
    if (schedule := query.get("schedule")) and not state:
        ticks = await store.run(skipped_ticks(keys, schedule))
        page["skippedTicks"] = [iso_time(tick) for tick in ticks[:MAX_SKIPPED]]
    return page


async def newest_failures(store: AsyncStore, keys: Keys) -> dict[str, Any]:
    """Return a page with the newest failed tasks of all owners. There is no second page."""
    operation = newest_tasks(keys, [keys.failures], limit=MAX_FAILURES)
    return {"tasks": [task_json(task) for task in (await store.run(operation)).tasks], "next": None}


def _prefixes(keys: Keys, agents: Collection[str], query: Mapping[str, str]) -> list[str]:
    """Return the key prefixes of the indexes to read. Each prefix has one index for each state."""
    if schedule := query.get("schedule"):
        for name in ("owner", "tenant", "agent"):
            if query.get(name):
                raise invalid(name, "Leave it out, or leave out the schedule, whose tasks have one owner and agent.")
        return [keys.schedule_index(schedule)]
    agent_names = [query["agent"]] if query.get("agent") else agents
    scopes = [Scope(agent, query.get("tenant", ""), query.get("owner", "")) for agent in agent_names]
    return [keys.scope_index(scope) for scope in scopes]


def _position(query: Mapping[str, str]) -> Position | None:
    cursor = query.get("cursor", FIRST_PAGE)
    if cursor == FIRST_PAGE:
        return None
    if (position := position_of(cursor)) is None:
        raise invalid("cursor", "Send the value of `next` of the previous page.")
    return position


async def _page(store: AsyncStore, keys: Keys, names: Sequence[str], cursor: Position | None) -> dict[str, Any]:
    tasks: list[TaskSummary] = []
    for first in range(0, len(names), INDEXES):
        operation = newest_tasks(keys, names[first : first + INDEXES], limit=PAGE + 1, cursor=cursor)
        tasks += (await store.run(operation)).tasks
    tasks.sort(key=lambda task: task.position, reverse=True)
    page = tasks[:PAGE]
    last = page[-1] if len(tasks) > PAGE else None
    return {
        "tasks": [task_json(task) for task in page],
        "next": position_token(last.position[0], last.ref.task_id) if last else None,
    }
