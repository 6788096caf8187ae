"""Lists of stored tasks for operators, newest status first: open and ended tasks of all owners, of one owner or of a
feature's filter, and failed tasks of all owners."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from a2a.types import TaskState

from ...features import TASK_FILTERS
from ...features.feature import FilteredTasks
from ...lifecycle.references import Scope
from ...operations.errors import invalid
from ...store import AsyncStore, Keys
from ...store.admin.scan import TaskSummary, newest_scopes, newest_tasks, scan_list
from ...store.codec import Position
from ...store.tasks.listing import position_of, position_token
from .reports import iso_time, task_json
from .task_texts import MAX_TASKS

PAGE = 50
INDEXES = 40
"""Maximum number of indexes that one script reads, so that a page for an owner with many agents does not delay other
commands."""

SCOPES = (200, 10_000)
"""Numbers of scopes that are read for a page of the tasks of all owners: first those that most pages need, then all
scopes in `Keys.scopes`."""

MAX_FAILURES = 200
"""Maximum number of failed tasks that are returned, which is the maximum length of `Keys.failures`."""

FIRST_PAGE = "0"
"""Cursor of the first page, as in the other lists of the operator's API."""

MAX_FURTHER = 100
"""Maximum number of further rows on a page."""

STATES = TaskState.keys()[1:]


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Parsed query for stored tasks.

    Attributes:
        states: Numbers of the states of the tasks.
        after_us: Time of the oldest status in µs since 1970, or None for no limit.
        before_us: Time of the newest status in µs since 1970, or None for no limit.
        cursor: Position of the last task on the previous page, or None for the first page.
    """

    states: Sequence[int]
    after_us: int | None
    before_us: int | None
    cursor: Position | None

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> TaskQuery:
        """Parse the filters ``state``, ``after`` and ``before`` and the cursor of a request.

        Raises:
            InvalidParamsError: The state is unknown, a time is not in ISO 8601, or the cursor is invalid.
        """
        state = query.get("state", "")
        if state and state not in STATES:
            raise invalid("state", f"Send one of {', '.join(STATES)}.")
        states = [TaskState.Value(name) for name in ([state] if state else STATES)]
        return cls(states, _time(query, "after"), _time(query, "before"), _position(query))

    async def newest(self, store: AsyncStore, keys: Keys, prefixes: Sequence[str]) -> list[TaskSummary]:
        """Return the first tasks of a page in the indexes with `prefixes`, and one more task if another page
        follows."""
        names = [f"{prefix}{number}" for prefix in prefixes for number in self.states]
        tasks: list[TaskSummary] = []
        for first in range(0, len(names), INDEXES):
            operation = newest_tasks(
                keys,
                names[first : first + INDEXES],
                limit=PAGE + 1,
                not_before_us=self.after_us,
                not_after_us=self.before_us,
                cursor=self.cursor,
            )
            tasks += (await store.run(operation)).tasks
        return _first_of_page(tasks)


async def tasks_of_all(store: AsyncStore, keys: Keys, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the tasks of all owners that match `query`.

    The indexes of the scopes are read in the order of their newest status, until no other scope can have a task of the
    page. The cost depends on the number of scopes, but not on the number of tasks.

    Args:
        query: Filters ``agent``, ``tenant``, ``owner``, ``state``, ``after`` and ``before``, and ``cursor``. A missing
            tenant or owner matches any value. "" selects tasks without a tenant or an owner.

    Raises:
        InvalidParamsError: `query` has a feature's filter. See `TaskQuery.parse` for other reasons.
    """
    for task_filter in TASK_FILTERS:
        if query.get(task_filter.name):
            raise invalid(task_filter.name, f"Send phase=any with a {task_filter.name}.")
    task_query = TaskQuery.parse(query)
    size = max(1, INDEXES // len(task_query.states))
    tasks: list[TaskSummary] = []
    seen: set[Scope] = set()
    for limit in SCOPES:
        scopes = await store.run(newest_scopes(keys, limit))
        new_scopes = [(scope, at_us) for scope, at_us in scopes if scope not in seen and _matches(scope, query)]
        seen.update(scope for scope, _ in scopes)
        for first in range(0, len(new_scopes), size):
            batch = new_scopes[first : first + size]
            oldest_us = tasks[PAGE].position.at_us if len(tasks) > PAGE else task_query.after_us or 0
            if batch[0][1] < oldest_us:
                return _page(tasks)
            prefixes = [keys.scope_index(scope) for scope, _ in batch]
            tasks = _first_of_page(tasks + await task_query.newest(store, keys, prefixes))
        if len(scopes) < limit:
            break
    return _page(tasks)


async def stored_tasks(
    store: AsyncStore, keys: Keys, agents: Collection[str], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return a page of the tasks that match `query`. If `query` has a feature's filter but no state, the further rows
    of the filter are included.

    Args:
        agents: Agents whose tasks are returned if `query` contains no agent.
        query: Filters: either a feature's filter, or ``owner``, ``tenant`` and ``agent``. Both can be combined with
            ``state``, ``after`` and ``before``. "" selects tasks without an owner or a tenant. ``cursor`` is `next` of
            the previous page; without it, or with "0", the first page is returned.

    Raises:
        InvalidParamsError: `query` has a feature's filter together with an owner, a tenant, an agent or another
            feature's filter. See `TaskQuery.parse` for other reasons.
    """
    filtered = _filtered_tasks(keys, query)
    prefixes = _scope_indexes(keys, agents, query) if filtered is None else [filtered.index_prefix]
    page = _page(await TaskQuery.parse(query).newest(store, keys, prefixes))
    if filtered is not None and filtered.further_times is not None and not query.get("state"):
        times = await store.run(filtered.further_times)
        page[f"{filtered.field}s"] = [iso_time(time) for time in times[:MAX_FURTHER]]
    return page


async def newest_failures(store: AsyncStore, keys: Keys) -> dict[str, Any]:
    """Return a page with the newest failed tasks of all owners. There is no second page."""
    operation = newest_tasks(keys, [keys.failures], limit=MAX_FAILURES)
    return {"tasks": [task_json(task) for task in (await store.run(operation)).tasks], "next": None}


async def page_of_list(store: AsyncStore, keys: Keys, name: str, cursor: int) -> dict[str, Any]:
    """Return a page of the list with the key `name`; see `scan_list`. `cursor` is `next` of the previous page, or 0."""
    page = await store.run(scan_list(keys, name, cursor=cursor, size=MAX_TASKS))
    return {"tasks": [task_json(task) for task in page.tasks], "next": page.cursor}


def _filtered_tasks(keys: Keys, query: Mapping[str, str]) -> FilteredTasks | None:
    """Return the tasks that a feature's filter in `query` selects, or None if `query` has no such filter."""
    selected = [task_filter for task_filter in TASK_FILTERS if query.get(task_filter.name)]
    if not selected:
        return None
    name = selected[0].name
    for other in ("owner", "tenant", "agent", *(task_filter.name for task_filter in selected[1:])):
        if query.get(other):
            raise invalid(other, f"Leave it out, or leave out the {name}.")
    return selected[0].select(keys, query[name])


def _scope_indexes(keys: Keys, agents: Collection[str], query: Mapping[str, str]) -> list[str]:
    """Return the prefixes of the indexes of the scopes in `query`. Each prefix has one index for each state."""
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


def _matches(scope: Scope, query: Mapping[str, str]) -> bool:
    return all(query.get(name, value) == value for name, value in asdict(scope).items())


def _time(query: Mapping[str, str], name: str) -> int | None:
    """Return the time in the parameter `name` in µs since 1970, or None without a time."""
    if not query.get(name):
        return None
    try:
        at = datetime.fromisoformat(query[name])
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise invalid(name, "Send a time in ISO 8601, such as 2030-01-31T12:00:00Z.") from None


def _first_of_page(tasks: Sequence[TaskSummary]) -> list[TaskSummary]:
    """Return the first tasks of a page, and one more task if another page follows. A task that has changed between two
    reads is returned once."""
    newest: dict[str, TaskSummary] = {}
    for task in sorted(tasks, key=lambda task: task.position, reverse=True):
        newest.setdefault(task.ref.task_id, task)
    return list(newest.values())[: PAGE + 1]


def _page(tasks: Sequence[TaskSummary]) -> dict[str, Any]:
    page = tasks[:PAGE]
    last = page[-1] if len(tasks) > PAGE else None
    return {
        "tasks": [task_json(task) for task in page],
        "next": position_token(last.position.at_us, last.ref.task_id) if last else None,
    }
