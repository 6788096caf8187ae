"""``celery -A … a2a list --all``: lists the tasks of all callers, from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from itertools import islice
from typing import Any

import click

from ...store.admin.scan import TaskSummary, all_tasks, tasks_in
from ...store.tasks.schedules import schedule_indexes, skipped_ticks
from ..output import json_line, state_name, table
from .selection import Selection, operator_store, refuse_filters, refuse_gateway_options, require_agent, selecting

EPOCH = datetime.fromtimestamp(0, UTC)

STORE_FILTERS = ("tenant", "owner", "since", "until", "begun")
"""Filters that gateways do not support."""


def with_all_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --all to ``list``. With this option, the command reads the store instead of calling a gateway."""

    def run(context: click.Context, /, all_callers: bool, schedule: str | None, **rest: Any) -> Any:
        if all_callers or schedule is not None:
            refuse_gateway_options(context, "--all" if schedule is None else "--schedule")
            return _show(context, Selection.from_options(rest), schedule, rest["limit"], rest["as_lines"])
        refuse_filters("--all or --stuck", rest, STORE_FILTERS)
        return command(**{name: value for name, value in rest.items() if name not in STORE_FILTERS})

    schedule_option = click.option(
        "--schedule", help="List the tasks of this schedule and its skipped ticks, from the store, for operators."
    )
    callback = selecting(*STORE_FILTERS)(click.pass_context(update_wrapper(run, command)))
    all_option = click.option(
        "--all",
        "all_callers",
        is_flag=True,
        help="List the tasks of all callers, for operators. Reads A2A_STORE_URL; needs no gateway.",
    )
    return all_option(schedule_option(callback))


def task_fields(task: TaskSummary) -> dict[str, Any]:
    """Return a task as a JSON object for scripts, without its messages and artifacts."""
    return {
        "task": task.ref.task_id,
        "agent": task.agent,
        "tenant": task.scope.tenant,
        "owner": task.scope.owner,
        "contextId": task.context_id,
        "state": state_name(task.state),
        "since": _time(task.since_us),
        "begun": _time(task.claimed_us) if task.claimed_us else None,
        "run": task.ref.run,
        "attempt": task.attempt,
        "worker": task.runner or None,
    }


def _time(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def summary_lines(tasks: Sequence[TaskSummary]) -> Iterable[str]:
    """Yield a heading and a line for each task. Tenant and owner are shown if any task has one."""
    columns: list[tuple[str, Callable[[TaskSummary], str]]] = [
        ("TASK", lambda task: task.ref.task_id),
        ("STATE", lambda task: state_name(task.state)),
        ("AGENT", lambda task: task.agent),
        ("SINCE (UTC)", lambda task: f"{datetime.fromtimestamp(task.since_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"),
    ]
    if any(task.scope.tenant for task in tasks):
        columns.append(("TENANT", lambda task: task.scope.tenant or "-"))
    if any(task.scope.owner for task in tasks):
        columns.append(("OWNER", lambda task: task.scope.owner or "-"))
    columns.append(("CONTEXT", lambda task: task.context_id))
    heading = [name for name, _ in columns]
    cells = [[cell(task) for _, cell in columns] for task in tasks]
    return table(heading, cells, ids=["TASK"], optional=["CONTEXT"], times=["SINCE (UTC)"], below=["OWNER", "TENANT"])


def _show(context: click.Context, selection: Selection, schedule: str | None, limit: int, as_lines: bool) -> None:
    skipped_times: list[datetime] = []
    with operator_store(context, None) as (a2a, store, keys):
        times = {"not_before_us": selection.since_us, "not_after_us": selection.until_us}
        if schedule is None:
            pattern = keys.indexes(selection.scope, selection.context_id)
            matching = (
                task for task in all_tasks(store, keys, pattern, selection.states, **times) if selection.has_begun(task)
            )
        else:
            names = schedule_indexes(keys, schedule)
            matching = (task for task in tasks_in(store, keys, names, selection.states, **times) if task in selection)
            skipped_times = [at for at in store.run(skipped_ticks(keys, schedule)) if selection.has_tick(at)]
        tasks = list(islice(matching, limit + 1))
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
    if as_lines:
        for task in tasks[:limit]:
            click.echo(json_line(task_fields(task)))
        for at in skipped_times[:limit]:
            click.echo(json_line({"task": None, "schedule": schedule, "skippedTick": at.isoformat()}))
        return
    _show_lines(tasks, limit)
    for at in skipped_times[:limit]:
        click.echo(f"skipped: the tick at {at:%Y-%m-%d %H:%M:%S} (UTC)")


def _show_lines(tasks: Sequence[TaskSummary], limit: int) -> None:
    if not tasks:
        click.echo("no task matches")
        return
    for line in summary_lines(tasks[:limit]):
        click.echo(line)
    if len(tasks) > limit:
        click.echo("… more tasks exist: raise --limit")
