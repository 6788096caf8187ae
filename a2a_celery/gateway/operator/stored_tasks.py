"""Lists of stored tasks for operators, newest status first: open and ended tasks of all owners, of one owner or of one
schedule, and failed tasks of all owners."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from a2a.types import TaskState

from ...features.schedules.section import schedule_index, skipped_ticks
from ...lifecycle.references import Scope
from ...operations.errors import invalid
from ...store import AsyncStore, Keys
from ...store.admin.scan import Position, TaskSummary, newest_scopes, newest_tasks
from ...store.tasks.listing import position_of, position_token
from .reports import iso_time, task_json

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

MAX_SKIPPED = 100
"""Maximum number of skipped ticks on a page."""

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
        InvalidParamsError: `query` has a schedule. See `TaskQuery.parse` for other reasons.
    """
    if query.get("schedule"):
        raise invalid("schedule", "Send phase=any with a schedule.")
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
            oldest_us = tasks[PAGE].position[0] if len(tasks) > PAGE else task_query.after_us or 0
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
    """Return a page of the tasks that match `query`. If `query` has a schedule but no state, skipped ticks are
    included.

    Args:
        agents: Agents whose tasks are returned if `query` contains no agent.
        query: Filters: either ``schedule``, or ``owner``, ``tenant`` and ``agent``. Both filters can be combined with
            ``state``, ``after`` and ``before``. "" selects tasks without an owner or a tenant. ``cursor`` is `next` of
            the previous page; without it, or with "0", the first page is returned.

    Raises:
        InvalidParamsError: `query` has a schedule together with an owner, a tenant or an agent. See `TaskQuery.parse`
            for other reasons.
    """
    prefixes = _prefixes(keys, agents, query)
    page = _page(await TaskQuery.parse(query).newest(store, keys, prefixes))
    if (schedule := query.get("schedule")) and not query.get("state"):
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
        return [schedule_index(keys, schedule)]
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
        "next": position_token(last.position[0], last.ref.task_id) if last else None,
    }
