"""``celery -A … a2a cancel --all``: cancels open tasks of all callers, in the store."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import update_wrapper
from itertools import chain
from time import monotonic
from typing import Any

import click

from ...agents import longest_grace
from ...lifecycle.outcomes import CANCELED_BY_OPERATOR
from ...lifecycle.references import Scope
from ...lifecycle.states import CANCELED, TERMINAL
from ...operations.service import TaskService
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary, open_tasks, read_states
from ...store.tasks.replies import CanceledNow, CancelRequested
from ..output import json_line, print_list, progress_bar
from .list_tasks import summary_lines, task_fields
from .selection import (
    Selection,
    operator_store,
    refuse_filters,
    refuse_gateway_options,
    require_agent,
    run_on_service,
    selecting,
)

MOST_STOPPING = 100
"""Maximum number of agents that stop at the same time."""

BEYOND_GRACE = 5.0
"""Seconds that an agent may take to stop in addition to `cancel_grace`. On prefork, the agent's process is killed
within this time."""

STATE_POLL_INTERVAL = 0.2

ONLY_HERE = ("owner", "context_id", "state", "since", "until", "begun")


def with_cancel_all_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --all to ``cancel``. With this option, the command writes to the store instead of calling a
    gateway."""

    def run(context: click.Context, /, everything: bool, **rest: Any) -> Any:
        own = {name: rest.pop(name) for name in ("yes", "dry_run", "most", "timeout")}
        if not everything:
            refuse_filters("--all", rest, ONLY_HERE)
            if any(value not in (None, False) for value in own.values()):
                raise click.UsageError("--yes, --dry-run, --limit and --timeout need --all")
            if rest["task"] is None:
                raise click.UsageError("Missing argument 'TASK': pass one, or --all and filters")
            return command(**{name: value for name, value in rest.items() if name not in ONLY_HERE})
        if rest.pop("store"):
            raise click.UsageError("--store needs TASK: --all reads the store anyway")
        if rest["task"] is not None:
            raise click.UsageError("pass a task, or --all and filters, but not both")
        refuse_gateway_options(context, "--all", has_filters=True)
        return _cancel(context, Selection.from_options(rest), as_lines=rest["as_lines"], **own)

    callback = selecting("tenant", *ONLY_HERE)(click.pass_context(update_wrapper(run, command)))
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="With --all: the time for each agent to stop. Default: the longest cancel_grace of all agents plus 5.",
        ),
        click.option("--limit", "most", type=click.IntRange(min=1), help="With --all: maximum number of tasks."),
        click.option("--dry-run", is_flag=True, help="With --all: list the tasks, and cancel none."),
        click.option("--yes", is_flag=True, help="With --all: do not ask for confirmation."),
        click.option(
            "--all",
            "everything",
            is_flag=True,
            help="Cancel the open tasks of all callers, for operators. Writes to A2A_STORE_URL; needs no gateway.",
        ),
    ):
        callback = option(callback)
    return callback


Target = tuple[str, Scope, str]
"""Task to cancel: id, scope and id of its context."""


class Canceller:
    """Canceller of stored tasks, with the guarantees of CancelTask.

    Args:
        timeout: Seconds to wait for each agent to stop.
    """

    def __init__(self, service: TaskService, timeout: float) -> None:
        self._service = service
        self._timeout = timeout
        self._stopping: dict[str, float] = {}
        """Monotonic time until which to wait, by the id of each task whose agent stops."""

    async def cancel(self, targets: Sequence[Target]) -> AsyncIterator[tuple[str, str]]:
        """Cancel tasks.

        Yields:
            The id of each task with its outcome: "canceled", "ended" (before the request) or "running" (the agent did
                not stop in time).

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        for task_id, scope, context_id in targets:
            match await self._service.cancel(scope, task_id, context_id, text=CANCELED_BY_OPERATOR):
                case CanceledNow():
                    yield task_id, "canceled"
                case CancelRequested():
                    self._stopping[task_id] = monotonic() + self._timeout
                case _:
                    yield task_id, "ended"
            while len(self._stopping) >= MOST_STOPPING:
                for outcome in await self._poll():
                    yield outcome
        while self._stopping:
            for outcome in await self._poll():
                yield outcome

    async def _poll(self) -> list[tuple[str, str]]:
        """Return the tasks that no longer stop. If there are none, wait first."""
        service, outcomes = self._service, []
        states = await service.store.run(read_states(service.keys, list(self._stopping)))
        for (task_id, until), state in zip(list(self._stopping.items()), states, strict=True):
            outcome = "canceled" if state == CANCELED else "ended" if state is None or state in TERMINAL else ""
            if outcome or monotonic() >= until:
                del self._stopping[task_id]
                outcomes.append((task_id, outcome or "running"))
        if not outcomes:
            await asyncio.sleep(STATE_POLL_INTERVAL)
        return outcomes


def _cancel(
    context: click.Context,
    selection: Selection,
    *,
    as_lines: bool,
    yes: bool,
    dry_run: bool,
    most: int | None,
    timeout: float | None,
) -> None:
    with operator_store(context, None) as (a2a, store, keys):
        tasks = _selected_tasks(store, keys, selection, most)
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
        if dry_run or not tasks:
            _show(tasks, as_lines)
            return
        _confirm(tasks, yes)
        grace = longest_grace(a2a.agents.values(), a2a.settings)
        wait = grace + BEYOND_GRACE if timeout is None else timeout
        outcomes: Counter[str] = Counter()
        running_tasks: list[TaskSummary] = []
        by_id = {task.ref.task_id: task for task in tasks}
        targets = [(task_id, task.scope, task.context_id) for task_id, task in by_id.items()]

        async def cancel(service: TaskService) -> None:
            with progress_bar("Cancelling", 0 if as_lines else len(tasks)) as advance:
                async for task_id, outcome in Canceller(service, wait).cancel(targets):
                    task = by_id[task_id]
                    outcomes[outcome] += 1
                    running_tasks.extend([task] * (outcome == "running"))
                    if as_lines:
                        click.echo(json_line(task_fields(task) | {"outcome": outcome}))
                    advance(1)

        run_on_service(a2a, cancel)
    if not as_lines:
        became = f"{outcomes['canceled']} canceled, {outcomes['ended']} had ended, {outcomes['running']} still running"
        click.echo(f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {became}")
        for line in summary_lines(running_tasks) if running_tasks else ():
            click.echo(line)
        if running_tasks:
            click.echo("these agents did not stop in time: see a2a list --stuck and a2a doctor")
    context.exit(int(bool(running_tasks)))


def _selected_tasks(store: SyncStore, keys: Keys, selection: Selection, most: int | None) -> list[TaskSummary]:
    """Return the open tasks that match `selection`, or the first `most` of them.

    The lists are read twice, because the first reading misses a task that moves to a list that was already read.
    """
    tasks: dict[str, TaskSummary] = {}
    for task in chain(open_tasks(store, keys), open_tasks(store, keys)):
        if most is not None and len(tasks) == most:
            break
        if task in selection:
            tasks.setdefault(task.ref.task_id, task)
    return list(tasks.values())


def _show(tasks: Sequence[TaskSummary], as_lines: bool) -> None:
    print_list(
        tasks, as_lines, lambda task: task_fields(task) | {"outcome": "dry-run"}, summary_lines, "no open task matches"
    )
    if tasks and not as_lines:
        click.echo(f"{_count_text(tasks)} would be cancelled")


def _confirm(tasks: Sequence[TaskSummary], yes: bool) -> None:
    if yes:
        return
    if not _is_interactive():
        raise click.UsageError(
            f"{_count_text(tasks)} would be cancelled: there is no terminal to confirm, so pass --yes"
        )
    click.confirm(f"Cancel {_count_text(tasks)}?", abort=True, err=True)


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _count_text(tasks: Sequence[TaskSummary]) -> str:
    by_agent = Counter(task.agent for task in tasks)
    agents = ", ".join(f"{many} of {agent}" for agent, many in by_agent.most_common())
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({agents})"
