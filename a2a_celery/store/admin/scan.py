"""Lists of open runs, pauses, and tasks of all owners, for operators.

A list is read in pages, so that a long list does not delay other Redis commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from a2a.types import StreamResponse, TaskState

from ...lifecycle import TERMINAL
from ...lifecycle.end_reasons import EndReason, end_reason
from ...lifecycle.references import RunRef, Scope, quote_key_part
from ..client.connection import SyncStore
from ..codec import Position, state_of
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Key, Reply, verb

PAGE = 200


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """Task in a list, with its newest run. All times are in µs by the store's clock.

    Attributes:
        since_us: Time at which the task entered its state. An update within the state does not change this time.
        runner: Worker process that has claimed the run, or "".
        max_attempts: Maximum number of attempts of the turn, or None before the first claim of the turn.
        cancel_requested_us: Time of the first request to cancel the open run, or None.
        republish_count: Number of times that the newest run was published again.
        claimed_us: Time of the last claim, or 0.
        waiting_since_us: Time since which a run that is not claimed waits: time of the newest status, of the end of a
            suspension or of the start of its turn, or the earliest time that the client allows, whichever is latest.
        score: Score of the task in the list; see ``keys``. A time of inf means never.
        now_us: Time at which the list was read.
        reason: Reason for which the task ended without a result, or None.
        reference: Reference of the failure in a worker's log, or "".
        is_resubmittable: True if the task keeps the data for a further run.
    """

    ref: RunRef
    agent: str
    context_id: str
    scope: Scope
    state: TaskState
    since_us: int
    runner: str
    attempt: int
    max_attempts: int | None
    cancel_requested_us: int | None
    republish_count: int
    claimed_us: int
    waiting_since_us: int
    score: float
    now_us: int = field(compare=False)
    reason: EndReason | None = None
    reference: str = ""
    is_resubmittable: bool = False

    @property
    def position(self) -> Position:
        """Position of the task in a list whose scores are times of statuses."""
        return Position(int(self.score), quote_key_part(self.ref.task_id))


@dataclass(frozen=True, slots=True)
class TaskSummaryPage:
    """Page of a list.

    Attributes:
        tasks: Tasks on the page.
        cursor: Cursor of the next page, or None on the last page.
    """

    tasks: list[TaskSummary]
    cursor: int | None


@verb
def scan_list(keys: Keys, name: Key, *, cursor: Digits = 0, size: int = PAGE) -> Reply[TaskSummaryPage]:
    """Read a page of a list. A task may appear on several pages.

    Args:
        keys: Keys of the deployment.
        name: Redis key of the list: `leases`, `dispatch`, `blocked`, `canvases`, `suspended`, `pauses` or
            `resubmittable` of `keys`.
        cursor: Cursor of the page, or 0 for the first page.
        size: Approximate number of tasks on the page.
    """
    return Reply(_page)


@verb
def newest_tasks(
    keys: Keys,
    indexes: Sequence[Key],
    *,
    limit: int,
    not_before_us: int | None = None,
    not_after_us: int | None = None,
    cursor: Position | None = None,
) -> Reply[TaskSummaryPage]:
    """Read the tasks of several indexes, newest status first.

    Args:
        keys: Keys of the deployment.
        indexes: Redis keys of sorted sets that are scored by the time of the status.
        limit: Maximum number of tasks.
        not_before_us: Time of the oldest status, in µs since 1970, or None for no bound.
        not_after_us: Time of the newest status, in µs since 1970, or None for no bound.
        cursor: Position of the last task on the previous page, or None for the first page.
    """
    return Reply(_page)


@verb
def newest_scopes(keys: Keys, limit: int) -> Reply[list[tuple[Scope, int]]]:
    """Read the scopes with the newest tasks, each with the time of its newest status in µs, newest status first."""

    def parse(reply: Sequence[bytes]) -> list[tuple[Scope, int]]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [(Scope.parse(scope.decode()), int(float(at))) for scope, at in pairs]

    return Reply(parse)


def read_states(keys: Keys, task_ids: Sequence[str]) -> Operation[list[TaskState | None]]:
    """Read the states of tasks. The state of a task that does not exist is None."""
    return _read_states([keys.task(task_id).record for task_id in task_ids])


@verb
def _read_states(records: Sequence[Key]) -> Reply[list[TaskState | None]]:
    def parse(reply: Sequence[bytes]) -> list[TaskState | None]:
        return [state_of(state) if state else None for state in reply]

    return Reply(parse)


def list_summaries(store: SyncStore, keys: Keys, name: str) -> Iterator[TaskSummary]:
    """Yield each task of the list with the key `name` once, in no particular order; see `scan_list`.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """

    def pages() -> Iterator[list[TaskSummary]]:
        cursor: int | None = 0
        while cursor is not None:
            page = store.run(scan_list(keys, name, cursor=cursor))
            yield page.tasks
            cursor = page.cursor

    return _each_once(pages())


def open_tasks(store: SyncStore, keys: Keys) -> Iterator[TaskSummary]:
    """Yield each live task once, in the order blocked, queued, interrupted, suspended, delegated and claimed.

    Blocked tasks come first, so that a caller that ends each task does not unblock the runs of later tasks.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    names = (keys.blocked, keys.dispatch, keys.pauses, keys.suspended, keys.canvases, keys.leases)
    return _each_once(list_summaries(store, keys, name) for name in names)


def state_indexes(prefix: str) -> list[str]:
    """Return the names of the indexes with a prefix, one for each state."""
    return [f"{prefix}{state}" for state in TaskState.values()[1:]]


def tasks_in(
    store: SyncStore,
    keys: Keys,
    names: Sequence[str],
    states: frozenset[TaskState],
    *,
    not_before_us: int | None = None,
    not_after_us: int | None = None,
    page_size: int = PAGE,
) -> Iterator[TaskSummary]:
    """Yield the tasks in indexes of states, newest status first.

    A task that changes during the reading may be missed. An index is sorted by the time of the newest status, which may
    be later than the time at which a task entered its state. Indexes of live states are therefore read beyond
    `not_after_us`.

    Args:
        store: Store client.
        keys: Keys of the deployment.
        names: Names of the indexes, such as those that match the pattern ``keys.indexes``, or `state_indexes`.
        states: States of the tasks. Indexes of other states are not read.
        not_before_us: Earliest time at which a task entered its state, in µs since 1970, or None for no limit.
        not_after_us: Latest time at which a task entered its state, in µs since 1970, or None for no limit.
        page_size: Maximum number of indexes, and of tasks, that one operation reads.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    terminal_indexes = _of_states(names, states & TERMINAL)
    live_indexes = _of_states(names, states - TERMINAL)
    first_us = not_before_us or 0
    last_us = math.inf if not_after_us is None else not_after_us

    def pages() -> Iterator[list[TaskSummary]]:
        cursor: Position | None = None
        while True:
            tasks: list[TaskSummary] = []
            for indexes, until_us in ((terminal_indexes, not_after_us), (live_indexes, None)):
                for first in range(0, len(indexes), page_size):
                    batch = indexes[first : first + page_size]
                    times = {"not_before_us": not_before_us, "not_after_us": until_us}
                    tasks += store.run(newest_tasks(keys, batch, limit=page_size, cursor=cursor, **times)).tasks
            if not tasks:
                return
            tasks = sorted(tasks, key=lambda task: task.position, reverse=True)[:page_size]
            yield [task for task in tasks if first_us <= task.since_us <= last_us]
            cursor = tasks[-1].position

    return _each_once(pages())


def _each_once(pages: Iterable[Iterable[TaskSummary]]) -> Iterator[TaskSummary]:
    task_ids: set[str] = set()
    for task in chain.from_iterable(pages):
        if task.ref.task_id not in task_ids:
            task_ids.add(task.ref.task_id)
            yield task


def _of_states(names: Sequence[str], states: frozenset[TaskState]) -> list[str]:
    endings = tuple(f":{int(state)}" for state in states)
    return [name for name in names if name.endswith(endings)]


def _page(reply: Sequence[Any]) -> TaskSummaryPage:
    following, now_us, *summaries = reply
    return TaskSummaryPage([_summary(fields, int(now_us)) for fields in summaries], int(following) or None)


def _summary(fields: Sequence[bytes | None], now_us: int) -> TaskSummary:
    *texts, status, is_resubmittable = (value or b"" for value in fields)
    score, task_id, run, agent, context, scope, state, at, runner, *numbers = (value.decode() for value in texts)
    attempt, most, cancel, again, claimed, waiting_since = numbers
    task_state = state_of(state.encode())
    reason, reference = end_reason(task_state, StreamResponse.FromString(status).status_update.status)
    return TaskSummary(
        RunRef(task_id, int(run)),
        agent,
        context,
        Scope.parse(scope),
        task_state,
        int(at),
        runner,
        int(attempt),
        int(most) if most else None,
        int(cancel) if cancel else None,
        int(again or 0),
        int(claimed or 0),
        int(waiting_since),
        float(score),
        now_us,
        reason,
        reference,
        is_resubmittable == b"1",
    )
