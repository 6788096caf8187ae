"""``celery -A … a2a cancel --all``: cancels open tasks of all callers, in the store."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import chain
from time import monotonic
from typing import Any

import click
from a2a.types import TaskState

from ...agents import longest_grace
from ...lifecycle.outcomes import CANCELED_BY_OPERATOR
from ...lifecycle.references import Scope
from ...lifecycle.states import CANCELED, TERMINAL
from ...operations.service import TaskService
from ...store.admin.scan import open_tasks, read_states
from ...store.tasks.replies import CanceledNow, CancelRequested
from ..output import Column, json_line, progress_bar
from .selection import SUMMARIES, Selection, operator_store, run_on_service, select

MOST_STOPPING = 100
"""Maximum number of agents that stop at the same time."""

BEYOND_GRACE = 5.0
"""Seconds that an agent may take to stop in addition to `cancel_grace`. On prefork, the agent's process is killed
within this time."""

STATE_POLL_INTERVAL = 0.2

DRY_RUN = replace(SUMMARIES, columns=[*SUMMARIES.columns, Column("", "outcome", lambda _: "dry-run")])

Target = tuple[str, Scope, str]
"""Task to cancel: id, scope and id of its context."""


async def cancel_tasks(
    service: TaskService, targets: Sequence[Target], timeout: float
) -> AsyncIterator[tuple[str, str]]:
    """Cancel stored tasks, with the guarantees of CancelTask.

    Args:
        service: Service that cancels the tasks.
        targets: Tasks to cancel.
        timeout: Seconds to wait for each agent to stop.

    Yields:
        The id of each task with its outcome: "canceled", "ended" (before the request) or "running" (the agent did not
            stop in time).

    Raises:
        StoreUnavailable: Redis cannot be reached, or refuses the command.
    """
    stopping: dict[str, float] = {}  # monotonic time until which to wait, by the id of each task whose agent stops
    for number, (task_id, scope, context_id) in enumerate(targets, 1):
        match await service.cancel(scope, task_id, context_id, text=CANCELED_BY_OPERATOR):
            case CanceledNow():
                yield task_id, "canceled"
            case CancelRequested():
                stopping[task_id] = monotonic() + timeout
            case _:
                yield task_id, "ended"
        while len(stopping) >= (MOST_STOPPING if number < len(targets) else 1):
            states = await service.store.run(read_states(service.keys, list(stopping)))
            outcomes = dict(zip(stopping, map(_outcome, states), strict=True))
            stopped = {name: outcome for name, outcome in outcomes.items() if outcome or monotonic() >= stopping[name]}
            for name, outcome in stopped.items():
                del stopping[name]
                yield name, outcome or "running"
            if not stopped:
                await asyncio.sleep(STATE_POLL_INTERVAL)


def _outcome(state: TaskState | None) -> str:
    """Return the outcome for a task in `state`, or "" if its agent still runs."""
    return "canceled" if state == CANCELED else "ended" if state is None or state in TERMINAL else ""


def cancel_all(
    context: click.Context,
    *,
    task_id: str | None,
    as_lines: bool,
    yes: bool,
    dry_run: bool,
    most: int | None,
    timeout: float | None,
    **filters: Any,
) -> None:
    """Cancel the open tasks that match `filters`, or the first `most` of them.

    The lists of open tasks are read twice, because the first reading misses a task that moves to a list that was
    already read.
    """
    if task_id is not None:
        raise click.UsageError("pass a task, or --all and filters, but not both")
    selection = Selection(**filters)
    with operator_store(context, None) as (a2a, store, keys):
        tasks = select(a2a, selection, chain(open_tasks(store, keys), open_tasks(store, keys)), limit=most)
        by_agent = ", ".join(f"{n} of {agent}" for agent, n in Counter(task.agent for task in tasks).most_common())
        count = f"{len(tasks)} task{'s' * (len(tasks) > 1)}"
        if dry_run or not tasks:
            DRY_RUN.print(tasks, as_lines, "no open task matches")
            if tasks and not as_lines:
                click.echo(f"{count} ({by_agent}) would be cancelled")
            return
        if not yes:
            _confirm(f"{count} ({by_agent})")
        wait = longest_grace(a2a.agents.values(), a2a.settings) + BEYOND_GRACE if timeout is None else timeout
        outcomes: dict[str, str] = {}
        by_id = {task.ref.task_id: task for task in tasks}

        async def cancel(service: TaskService) -> None:
            targets = [(task.ref.task_id, task.scope, task.context_id) for task in tasks]
            with progress_bar("Cancelling", 0 if as_lines else len(tasks)) as advance:
                async for each, outcome in cancel_tasks(service, targets, wait):
                    outcomes[each] = outcome
                    if as_lines:
                        click.echo(json_line(SUMMARIES.fields(by_id[each]) | {"outcome": outcome}))
                    advance(1)

        run_on_service(a2a, cancel)
    running_tasks = [by_id[task_id] for task_id, outcome in outcomes.items() if outcome == "running"]
    if not as_lines:
        numbers = Counter(outcomes.values())
        became = f"{numbers['canceled']} canceled, {numbers['ended']} had ended, {numbers['running']} still running"
        click.echo(f"{count}: {became}")
        if running_tasks:
            SUMMARIES.print(running_tasks, as_lines)
            click.echo("these agents did not stop in time: see a2a list --stuck and a2a doctor")
    context.exit(int(bool(running_tasks)))


def _confirm(tasks: str) -> None:
    if not is_interactive():
        raise click.UsageError(f"{tasks} would be cancelled: there is no terminal to confirm, so pass --yes")
    click.confirm(f"Cancel {tasks}?", abort=True, err=True)


def is_interactive() -> bool:
    """Return True if a user can confirm."""
    return sys.stdin.isatty()
