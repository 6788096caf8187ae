"""What stands in the lists of open runs, pauses, dead letters and tasks: for an operator who wants to see it, whoever
the tasks belong to.

Read a page at a time, so that a long list holds up nobody; what no list names is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import TaskState

from ...lifecycle import TERMINAL
from ..client.connection import SyncStore
from ..codec import state_of
from ..keys import Keys, Scope
from ..operation import Operation, script
from ..runs.commands import RunRef

PAGE = 200


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A task in a list: its newest run, and how it stands. Times are the store's, in µs.

    `score` is the list's own time (see ``keys``), inf for never; `now_us` is when this was read. `runner` is the worker
    process, "" for none.
    """

    ref: RunRef
    agent: str
    context_id: str
    scope: Scope
    state: TaskState
    since_us: int
    """When it entered its state; further statuses of the same state, such as progress, change nothing."""
    runner: str
    attempt: int
    max_attempts: int
    cancel_asked_us: int | None
    published_again: int
    begins_us: int
    """When its client allows the run to begin; 0: at once."""
    claimed_us: int
    """When a worker began its newest run; 0: no worker has begun one."""

    score: float
    now_us: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class TaskSummaryPage:
    """Some of a list, and the cursor of what follows; None: that was all."""

    rows: list[TaskSummary]
    cursor: int | None


def scan_list(keys: Keys, name: str, *, cursor: int = 0) -> Operation[TaskSummaryPage]:
    """A page of a list (``keys.leases``, ``dispatch``, ``behind``, ``canvases``, ``pauses``, ``dead_letters``). A row
    may come twice."""
    of_runs = name in (keys.leases, keys.dispatch, keys.blocked, keys.canvases)
    return Operation(script("scan_list"), [name], [keys.prefix, cursor, PAGE, int(of_runs)], _page)


def newest_tasks(
    keys: Keys, indexes: Sequence[str], *, limit: int, not_before_us: int | None, not_after_us: int | None
) -> Operation[TaskSummaryPage]:
    """Up to `limit` tasks of the lists `indexes` (see ``keys.indexes``), newest status first, within these times."""
    since = "-inf" if not_before_us is None else not_before_us
    until = "+inf" if not_after_us is None else not_after_us
    return Operation(script("newest_tasks"), indexes, [keys.prefix, limit, since, until], _page)


def read_states(keys: Keys, task_ids: Sequence[str]) -> Operation[list[TaskState | None]]:
    """The state of each task; None for one that is not there."""

    def parse(answer: Sequence[bytes]) -> list[TaskState | None]:
        return [state_of(state) if state else None for state in answer]

    return Operation(script("read_states"), [keys.task(task_id).record for task_id in task_ids], [], parse)


def listed(store: SyncStore, keys: Keys, name: str) -> Iterator[TaskSummary]:
    """All of the list `name`, each task once, in no order.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    seen: set[str] = set()
    cursor: int | None = 0
    while cursor is not None:
        page = store.run(scan_list(keys, name, cursor=cursor))
        for row in page.rows:
            if row.ref.task_id not in seen:
                seen.add(row.ref.task_id)
                yield row
        cursor = page.cursor


def open_tasks(store: SyncStore, keys: Keys) -> Iterator[TaskSummary]:
    """All tasks that have not ended, each once, in the order in which they can be stopped: those that stand behind
    others first, then those that wait, then those that are at work.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    seen: set[str] = set()
    for name in (keys.blocked, keys.dispatch, keys.pauses, keys.canvases, keys.leases):
        for row in listed(store, keys, name):
            if row.ref.task_id not in seen:
                seen.add(row.ref.task_id)
                yield row


def all_tasks(
    store: SyncStore,
    keys: Keys,
    pattern: str,
    states: frozenset[TaskState],
    *,
    not_before_us: int | None = None,
    not_after_us: int | None = None,
) -> Iterator[TaskSummary]:
    """Everybody's tasks in `states`, ended ones too, newest status first; `pattern` is one of ``keys.indexes``.

    `not_before_us` and `not_after_us` are about when a task entered its state. A list of tasks is sorted by the newest
    status, which may be later: so the lists of live states are read beyond `not_after_us`.

    Finding whose tasks there are takes a look at the names of all keys, in small steps. A task that changes meanwhile
    may be missed.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    names = list(store.names(pattern))
    ended = _of_states(names, states & TERMINAL)
    live = _of_states(names, states - TERMINAL)
    seen: set[str] = set()
    cursor_us: int | None = None
    while True:
        found: list[TaskSummary] = []
        for indexes, until_us in ((ended, _earlier(cursor_us, not_after_us)), (live, cursor_us)):
            for first in range(0, len(indexes), PAGE):
                some = indexes[first : first + PAGE]
                times = {"not_before_us": not_before_us, "not_after_us": until_us}
                found += store.run(newest_tasks(keys, some, limit=PAGE, **times)).rows
        found.sort(key=lambda row: (row.score, row.ref.task_id), reverse=True)
        new = [row for row in found[:PAGE] if row.ref.task_id not in seen]
        if not new:
            return
        seen.update(row.ref.task_id for row in new)
        for row in new:
            if row.since_us >= (not_before_us or 0) and (not_after_us is None or row.since_us <= not_after_us):
                yield row
        cursor_us = int(new[-1].score)


def _of_states(names: Sequence[str], states: frozenset[TaskState]) -> list[str]:
    endings = tuple(f":{int(state)}" for state in states)
    return [name for name in names if name.endswith(endings)]


def _earlier(first: int | None, second: int | None) -> int | None:
    return min((time for time in (first, second) if time is not None), default=None)


def _page(answer: Sequence[Any]) -> TaskSummaryPage:
    following, now_us, *rows = answer
    return TaskSummaryPage([_listed(row, int(now_us)) for row in rows], int(following) or None)


def _listed(row: Sequence[bytes | None], now_us: int) -> TaskSummary:
    score, task_id, run, agent, context, scope, state, at, runner, attempt, most, asked, again, begins, claimed = (
        (value or b"").decode() for value in row
    )
    return TaskSummary(
        RunRef(task_id, int(run)),
        agent,
        context,
        Scope.parse(scope),
        state_of(state.encode()),
        int(at),
        runner,
        int(attempt),
        int(most or 1),
        int(asked) if asked else None,
        int(again or 0),
        int(begins or 0),
        int(claimed or 0),
        float(score),
        now_us,
    )
