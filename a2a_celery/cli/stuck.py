"""``celery -A … a2a list --stuck``: tasks that wait or hang, for an operator; from the store, through no gateway.

Only the lists of open runs and of pauses are read, a page at a time: what has ended costs nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import update_wrapper
from typing import Any

import click

from ..store import Keys, SyncStore
from ..store.scan import Listed, listed
from .everybody import refuse_gateway
from .operating import duration, operated_store
from .selection import Selection
from .show import state_name, table

OLDER_THAN = 60.0
LAPSED_AFTER = 5.0
"""Seconds: a watcher sees to a lease that is over within one of them, but not right after its own start."""


class Why(Enum):
    """What a task waits for, and what to do about it."""

    UNCLAIMED = "unclaimed", "no worker began it", "is a worker up that has this agent and reads its queue?"
    BEHIND = (
        "behind",
        "another run of its context comes first",
        "a2a list --context CONTEXT shows which",
    )
    LAPSED = "lapsed", "its worker is lost", "no watcher sees to it: start one with a2a watcher"
    PAUSED = "paused", "its client does not answer", "a2a send AGENT TEXT --task TASK answers, a2a cancel TASK ends it"
    CANCELING = "canceling", "was to be cancelled, and goes on", "its agent or its worker hangs: see the worker's log"

    def __init__(self, code: str, said: str, remedy: str) -> None:
        self.code = code
        self.said = said
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Stuck:
    """A task that has waited for so many seconds."""

    task: Listed
    why: Why
    seconds: float

    def row(self) -> tuple[str, ...]:
        """For people: as `HEADING` says."""
        said = self.why.said
        if self.why is Why.UNCLAIMED and self.task.published_again:
            said += f", published again {self.task.published_again} times"
        run = f"{self.task.ref.run}"
        return (self.task.ref.task_id, self.task.agent, run, duration(self.seconds), self.task.runner or "-", said)

    def as_json(self) -> str:
        """For scripts."""
        fields: dict[str, Any] = {
            "task": self.task.ref.task_id,
            "agent": self.task.agent,
            "contextId": self.task.context_id,
            "state": state_name(self.task.state),
            "why": self.why.code,
            "seconds": round(self.seconds, 3),
            "run": self.task.ref.run,
            "attempt": self.task.attempt,
            "worker": self.task.runner or None,
            "publishedAgain": self.task.published_again,
        }
        return json.dumps(fields, ensure_ascii=False)


HEADING = ("TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY")


def or_stuck(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the ``list`` command the option --stuck, which asks the store instead of a gateway."""

    def run(context: click.Context, /, stuck: bool, older_than: float | None, **rest: Any) -> Any:
        if not stuck:
            if older_than is not None:
                raise click.UsageError("--older-than goes with --stuck")
            return command(**rest)
        refuse_gateway("--stuck", rest)
        if rest["state"] is not None:
            raise click.UsageError("--stuck says itself what a task waits for: leave out --state")
        seconds = OLDER_THAN if older_than is None else older_than
        return _show(context, Selection.taken_from(rest), seconds, rest["limit"], rest["as_lines"])

    callback = click.pass_context(update_wrapper(run, command))
    for option in (
        click.option(
            "--older-than",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=f"With --stuck: only what has waited for longer than this. Not given: {OLDER_THAN:g}.",
        ),
        click.option(
            "--stuck",
            is_flag=True,
            help="Tasks that wait or hang: not begun, lost with their worker, without an answer, not cancelled. Reads "
            "A2A_STORE_URL, needs no gateway.",
        ),
    ):
        callback = option(callback)
    return callback


def stuck_tasks(store: SyncStore, keys: Keys, older_than: float) -> Iterator[Stuck]:
    """Tasks that have waited for longer than `older_than` seconds, in no order.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    for task in listed(store, keys, keys.dispatch):
        if (waited := _seconds(task, max(task.since_us, task.begins_us))) > older_than:
            yield Stuck(task, Why.UNCLAIMED, waited)
    for task in listed(store, keys, keys.behind):
        if (waited := _seconds(task, task.score)) > older_than:
            yield Stuck(task, Why.BEHIND, waited)
    for task in listed(store, keys, keys.leases):
        if (lapsed := _seconds(task, task.score)) > min(older_than, LAPSED_AFTER):
            yield Stuck(task, Why.LAPSED, lapsed)
        elif task.cancel_asked_us is not None and (asked := _seconds(task, task.cancel_asked_us)) > older_than:
            yield Stuck(task, Why.CANCELING, asked)
    for task in listed(store, keys, keys.pauses):
        if (waited := _seconds(task, task.since_us)) > older_than:
            yield Stuck(task, Why.PAUSED, waited)


def _seconds(task: Listed, since_us: float) -> float:
    return (task.now_us - since_us) / 1_000_000


def _show(context: click.Context, wanted: Selection, older_than: float, limit: int, as_lines: bool) -> None:
    with operated_store(context, wanted.agent) as (_, store, keys):
        found = [one for one in stuck_tasks(store, keys, older_than) if one.task in wanted]
    found.sort(key=lambda one: one.seconds, reverse=True)
    shown = found[:limit]
    if as_lines:
        for one in shown:
            click.echo(one.as_json())
        return
    if not found:
        click.echo(f"nothing is stuck: no task has waited for longer than {duration(older_than)}")
        return
    for line in table(HEADING, [one.row() for one in shown]):
        click.echo(line)
    if len(found) > limit:
        click.echo(f"… {len(found) - limit} more: --limit")
    for why in Why:
        if any(one.why is why for one in shown):
            click.echo(f"{why.said}: {why.remedy}")
