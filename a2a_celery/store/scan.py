"""What stands in the lists of open runs, pauses and dead letters: for an operator who wants to see it.

Read a page at a time, so that a long list holds up nobody; what no list names is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import TaskState

from .codec import state_of
from .connection import SyncStore
from .keys import Keys
from .operation import Operation, script
from .runs import RunRef

PAGE = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """A task in a list: its newest run, and how it stands. Times are the store's, in µs.

    `score` is the list's own time (see ``keys``), inf for never; `now_us` is when this was read. `runner` is the worker
    process, "" for none; `options` are those that the run was stored with.
    """

    ref: RunRef
    agent: str
    context_id: str
    state: TaskState
    since_us: int
    """When it came into its state."""
    runner: str
    attempt: int
    max_attempts: int
    cancel_asked_us: int | None
    published_again: int
    options: bytes
    score: float
    now_us: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ListedPage:
    """Some of a list, and the cursor of what follows; None: that was all."""

    rows: list[Listed]
    cursor: int | None


def scan_list(keys: Keys, name: str, *, cursor: int = 0) -> Operation[ListedPage]:
    """A page of a list (``keys.leases``, ``dispatch``, ``behind``, ``pauses``, ``dead_letters``). A row may
    come twice."""

    def parse(answer: Sequence[Any]) -> ListedPage:
        following, now_us, *rows = answer
        return ListedPage([_listed(row, int(now_us)) for row in rows], int(following) or None)

    of_runs = name in (keys.leases, keys.dispatch, keys.behind)
    return Operation(script("scan_list"), [name], [keys.prefix, cursor, PAGE, int(of_runs)], parse)


def listed(store: SyncStore, keys: Keys, name: str) -> Iterator[Listed]:
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


def _listed(row: Sequence[bytes | None], now_us: int) -> Listed:
    score, task_id, run, agent, context, state, at, runner, attempt, most, asked, again, options = (
        (value or b"").decode() for value in row
    )
    return Listed(
        RunRef(task_id, int(run)),
        agent,
        context,
        state_of(state.encode()),
        int(at),
        runner,
        int(attempt),
        int(most or 1),
        int(asked) if asked else None,
        int(again or 0),
        options.encode(),
        float(score),
        now_us,
    )
