"""``celery -A … a2a list --stuck``: lists tasks that wait or hang, from the store.

The command pages through the lists of open runs and of pauses. Ended tasks are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any

import click

from ...client import state_name
from ...lifecycle.execution import process_of, worker_of
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary, list_summaries
from ..output import Column, Table, duration
from .selection import Selection, operator_store, require_agent

OLDER_THAN = 60.0
LAPSED_AFTER = 5.0
"""Seconds after which a watcher should have recovered an expired lease or resumed an overdue task. A watcher that has
just started may need longer."""


class Why(Enum):
    """Reason why a task waits, with a remedy."""

    UNCLAIMED = (
        "unclaimed",
        "no worker began it",
        "start a worker that has this agent and consumes its queue, unless a busy worker has prefetched the run: "
        "a2a top shows it",
    )
    BLOCKED = ("blocked", "another run of its context comes first", "a2a list --context CONTEXT shows which")
    CANVAS = (
        "canvas",
        "the canvas that its Celery task began has not ended",
        "its tasks must run, and the last must store a result that watchers can read: see a2a doctor",
    )
    LAPSED = "lapsed", "its worker is lost", "no watcher recovers it: start one with a2a watcher"
    OVERDUE = "overdue", "its time to continue has passed", "no watcher resumes it: start one with a2a watcher"
    SIGNAL = "signal", "waits for a signal", "a2a signal TASK NAME sends it, a2a cancel TASK ends it"
    PAUSED = "paused", "waits for its client", "a2a send AGENT TEXT --task TASK answers, a2a cancel TASK ends it"
    CANCELING = "canceling", "cancel requested, still running", "its agent or its worker hangs: see the worker's log"

    def __init__(self, code: str, text: str, remedy: str) -> None:
        self.code = code
        self.text = text
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Stuck:
    """Task that has waited for `seconds` because of `why`."""

    task: TaskSummary
    why: Why
    seconds: float

    @property
    def reason(self) -> str:
        """Reason in words."""
        count = self.task.republish_count
        if self.why is not Why.UNCLAIMED or not count:
            return self.why.text
        return f"{self.why.text}, published again {count} {'time' if count == 1 else 'times'}"


STUCK = Table[Stuck](
    [
        Column("TASK", "task", lambda stuck: stuck.task.ref.task_id),
        Column("AGENT", "agent", lambda stuck: stuck.task.agent),
        Column("", "contextId", lambda stuck: stuck.task.context_id),
        Column("", "state", lambda stuck: state_name(stuck.task.state)),
        Column("RUN", "run", lambda stuck: stuck.task.ref.run),
        Column("", "attempt", lambda stuck: stuck.task.attempt),
        Column("FOR", "seconds", lambda stuck: round(stuck.seconds, 3), lambda stuck: duration(stuck.seconds)),
        Column("WORKER", "worker", lambda stuck: worker_of(stuck.task.runner) or None),
        Column("", "process", lambda stuck: process_of(stuck.task.runner) or None),
        Column("WHY", "why", lambda stuck: stuck.why.code, lambda stuck: stuck.reason),
        Column("", "publishedAgain", lambda stuck: stuck.task.republish_count),
    ]
)


def stuck_tasks(store: SyncStore, keys: Keys, older_than: float) -> Iterator[Stuck]:
    """Yield the tasks that have waited for longer than `older_than` seconds, in no particular order.

    Overdue tasks and tasks with an expired lease are yielded after `LAPSED_AFTER` seconds at the latest.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    waits: Mapping[str, Mapping[Why, Callable[[TaskSummary], float]]] = {
        keys.dispatch: {Why.UNCLAIMED: lambda task: task.waiting_since_us},
        keys.blocked: {Why.BLOCKED: lambda task: task.score},
        keys.canvases: {Why.CANVAS: lambda task: task.claimed_us or task.since_us},
        keys.leases: {
            Why.LAPSED: lambda task: task.score,
            Why.CANCELING: lambda task: inf if task.cancel_requested_us is None else task.cancel_requested_us,
        },
        keys.suspended: {
            Why.OVERDUE: lambda task: task.score,
            Why.SIGNAL: lambda task: task.waiting_since_us if task.score == inf else inf,
        },
        keys.pauses: {Why.PAUSED: lambda task: task.since_us},
    }
    for name, began_us in waits.items():
        for task in list_summaries(store, keys, name):
            for why, since_us in began_us.items():
                seconds = (task.now_us - since_us(task)) / 1_000_000
                if seconds > (min(older_than, LAPSED_AFTER) if why in (Why.LAPSED, Why.OVERDUE) else older_than):
                    yield Stuck(task, why, seconds)
                    break


def list_stuck(
    context: click.Context, *, limit: int, as_lines: bool, older_than: float | None, state: str | None, **filters: Any
) -> None:
    """Print the tasks that have waited for longer than `older_than` seconds, or `OLDER_THAN`, longest wait first."""
    if state is not None:
        raise click.UsageError("--stuck selects the states itself: leave out --state")
    seconds = OLDER_THAN if older_than is None else older_than
    selection = Selection(**filters)
    with operator_store(context, None) as (a2a, store, keys):
        tasks = [stuck for stuck in stuck_tasks(store, keys, seconds) if stuck.task in selection]
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
    tasks.sort(key=lambda stuck: stuck.seconds, reverse=True)
    empty = f"nothing is stuck: no task has waited for longer than {duration(seconds)}"
    STUCK.print(tasks, as_lines, empty, limit=limit)
    causes = set() if as_lines else {stuck.why for stuck in tasks[:limit]}
    for cause in filter(causes.__contains__, Why):
        click.echo(f"{cause.text}: {cause.remedy}")
