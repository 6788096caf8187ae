"""``celery -A … a2a list --stuck``: lists tasks that wait or hang, from the store.

The command pages through the lists of open runs and of pauses. Ended tasks are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any

import click

from ...lifecycle.execution import process_of, worker_of
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary, list_summaries
from ..output import print_list, state_name, table
from .selection import Selection, duration, operator_store, require_agent

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

    def cells(self) -> tuple[str, ...]:
        """Return the cells under `HEADING`."""
        text = self.why.text
        if self.why is Why.UNCLAIMED and self.task.republish_count:
            count = self.task.republish_count
            text += f", published again {count} {'time' if count == 1 else 'times'}"
        run = f"{self.task.ref.run}"
        worker = worker_of(self.task.runner) or "-"
        return (self.task.ref.task_id, self.task.agent, run, duration(self.seconds), worker, text)

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.task.ref.task_id,
            "agent": self.task.agent,
            "contextId": self.task.context_id,
            "state": state_name(self.task.state),
            "why": self.why.code,
            "seconds": round(self.seconds, 3),
            "run": self.task.ref.run,
            "attempt": self.task.attempt,
            "worker": worker_of(self.task.runner) or None,
            "process": process_of(self.task.runner) or None,
            "publishedAgain": self.task.republish_count,
        }


HEADING = ("TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY")


def stuck_tasks(store: SyncStore, keys: Keys, older_than: float) -> Iterator[Stuck]:
    """Yield the tasks that have waited for longer than `older_than` seconds, in no particular order.

    Overdue tasks and tasks with an expired lease are yielded after `LAPSED_AFTER` seconds at the latest.

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    for task in list_summaries(store, keys, keys.dispatch):
        if (wait_seconds := _seconds(task, task.waiting_since_us)) > older_than:
            yield Stuck(task, Why.UNCLAIMED, wait_seconds)
    for task in list_summaries(store, keys, keys.blocked):
        if (wait_seconds := _seconds(task, task.score)) > older_than:
            yield Stuck(task, Why.BLOCKED, wait_seconds)
    for task in list_summaries(store, keys, keys.canvases):
        if (wait_seconds := _seconds(task, task.claimed_us or task.since_us)) > older_than:
            yield Stuck(task, Why.CANVAS, wait_seconds)
    for task in list_summaries(store, keys, keys.leases):
        if (lapse_seconds := _seconds(task, task.score)) > min(older_than, LAPSED_AFTER):
            yield Stuck(task, Why.LAPSED, lapse_seconds)
        elif task.cancel_requested_us is not None and (age := _seconds(task, task.cancel_requested_us)) > older_than:
            yield Stuck(task, Why.CANCELING, age)
    for task in list_summaries(store, keys, keys.suspended):
        if (overdue := _seconds(task, task.score)) > min(older_than, LAPSED_AFTER):
            yield Stuck(task, Why.OVERDUE, overdue)
        elif task.score == inf and (wait_seconds := _seconds(task, task.waiting_since_us)) > older_than:
            yield Stuck(task, Why.SIGNAL, wait_seconds)
    for task in list_summaries(store, keys, keys.pauses):
        if (wait_seconds := _seconds(task, task.since_us)) > older_than:
            yield Stuck(task, Why.PAUSED, wait_seconds)


def _seconds(task: TaskSummary, since_us: float) -> float:
    return (task.now_us - since_us) / 1_000_000


def list_stuck(
    context: click.Context, selection: Selection, older_than: float | None, limit: int, as_lines: bool
) -> None:
    """Print the tasks that have waited for longer than `older_than` seconds, or `OLDER_THAN`, longest wait first."""
    seconds = OLDER_THAN if older_than is None else older_than
    with operator_store(context, None) as (a2a, store, keys):
        tasks = [task for task in stuck_tasks(store, keys, seconds) if task.task in selection]
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
    tasks.sort(key=lambda task: task.seconds, reverse=True)
    shown_tasks = tasks[:limit]
    empty = f"nothing is stuck: no task has waited for longer than {duration(seconds)}"
    print_list(shown_tasks, as_lines, Stuck.as_dict, _lines, empty)
    if as_lines:
        return
    if len(tasks) > limit:
        click.echo(f"… {len(tasks) - limit} more tasks: raise --limit")
    for cause in Why:
        if any(task.why is cause for task in shown_tasks):
            click.echo(f"{cause.text}: {cause.remedy}")


def _lines(tasks: Sequence[Stuck]) -> Iterable[str]:
    return table(HEADING, [task.cells() for task in tasks])
