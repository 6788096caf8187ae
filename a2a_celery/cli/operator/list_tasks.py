"""``celery -A … a2a list --all``: lists the tasks of all callers, from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from itertools import islice
from typing import Any

import click

from ...features import TASK_FILTERS
from ...features.feature import TaskFilter
from ...lifecycle.execution import process_of, worker_of
from ...store.admin.scan import TaskSummary, all_tasks, state_indexes, tasks_in
from ..output import json_line, print_list, state_name, table
from .selection import Selection, operator_store, refuse_filters, refuse_gateway_options, require_agent, selecting
from .stuck_tasks import OLDER_THAN, list_stuck

EPOCH = datetime.fromtimestamp(0, UTC)

STORE_FILTERS = ("owner", "since", "until", "begun")
"""Filters that gateways do not support."""


STORE_MODES = ("--all", "--stuck", *(f"--{task_filter.name}" for task_filter in TASK_FILTERS))
"""Options with which ``list`` reads the store."""


def with_list_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --all and --stuck and the filters of features to ``list``. With one of these options, the command
    reads the store instead of calling a gateway."""

    def run(
        context: click.Context,
        /,
        all_callers: bool,
        stuck: bool,
        older_than: float | None,
        **rest: Any,
    ) -> Any:
        if older_than is not None and not stuck:
            raise click.UsageError("--older-than needs --stuck")
        values = [(task_filter, rest.pop(task_filter.name.replace("-", "_"))) for task_filter in TASK_FILTERS]
        selected = [(task_filter, value) for task_filter, value in values if value is not None]
        names = [f"--{task_filter.name}" for task_filter, _ in selected]
        mode = "--stuck" if stuck else names[0] if names else "--all" if all_callers else None
        if mode is None:
            refuse_filters("--all or --stuck", rest, STORE_FILTERS)
            return command(**{name: value for name, value in rest.items() if name not in STORE_FILTERS})
        refuse_gateway_options(context, mode, has_filters=True)
        limit, as_lines = rest["limit"], rest["as_lines"]
        if len(names) > 1:
            raise click.UsageError(f"pass only one of {', '.join(names)}")
        if not stuck:
            return _list(context, Selection.from_options(rest), next(iter(selected), None), limit, as_lines)
        if names:
            raise click.UsageError(f"--stuck cannot be combined with {names[0]}")
        if rest["state"] is not None:
            raise click.UsageError("--stuck selects the states itself: leave out --state")
        return list_stuck(context, Selection.from_options(rest), older_than, limit, as_lines)

    callback = selecting("tenant", *STORE_FILTERS)(click.pass_context(update_wrapper(run, command)))
    for option in (
        *(click.option(f"--{task_filter.name}", help=task_filter.help) for task_filter in TASK_FILTERS),
        click.option(
            "--all",
            "all_callers",
            is_flag=True,
            help="List the tasks of all callers, for operators. Reads A2A_STORE_URL; needs no gateway.",
        ),
        click.option(
            "--older-than",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=f"With --stuck: the shortest wait to report. Default: {OLDER_THAN:g}.",
        ),
        click.option(
            "--stuck",
            is_flag=True,
            help="List tasks of all callers that wait or hang, and why. Reads A2A_STORE_URL; needs no gateway.",
        ),
    ):
        callback = option(callback)
    return callback


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
        "worker": worker_of(task.runner) or None,
        "process": process_of(task.runner) or None,
        "reason": task.reason,
        "reference": task.reference or None,
        "deadLetter": task.is_dead_letter,
    }


def _reason(task: TaskSummary) -> str:
    """Return the reason of a failure, and whether the task can be requeued."""
    return f"{task.reason or '-'}{', dead letter' if task.is_dead_letter else ''}"


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
    if any(task.reason for task in tasks):
        columns.append(("REASON", _reason))
    if any(task.reference for task in tasks):
        columns.append(("REFERENCE", lambda task: task.reference or "-"))
    if any(task.scope.tenant for task in tasks):
        columns.append(("TENANT", lambda task: task.scope.tenant or "-"))
    if any(task.scope.owner for task in tasks):
        columns.append(("OWNER", lambda task: task.scope.owner or "-"))
    columns.append(("CONTEXT", lambda task: task.context_id))
    heading = [name for name, _ in columns]
    cells = [[cell(task) for _, cell in columns] for task in tasks]
    return table(heading, cells, optional=["CONTEXT"], times=["SINCE (UTC)"])


def _list(
    context: click.Context, selection: Selection, selected: tuple[TaskFilter, str] | None, limit: int, as_lines: bool
) -> None:
    """List the tasks that match `selection` and, unless it is None, a feature's filter with its value."""
    further_lines: list[str] = []
    bounds: Any = {"not_before_us": selection.since_us, "not_after_us": selection.until_us}
    with operator_store(context, None) as (a2a, store, keys):
        if selected is None:
            pattern = keys.indexes(selection.scope, selection.context_id)
            matching = filter(selection.has_begun, all_tasks(store, keys, pattern, selection.states, **bounds))
        else:
            task_filter, value = selected
            filtered = task_filter.select(keys, value)
            indexes = state_indexes(filtered.index_prefix)
            matching = filter(selection.__contains__, tasks_in(store, keys, indexes, selection.states, **bounds))
            if filtered.further_times is not None:
                times = [time for time in store.run(filtered.further_times) if selection.has_time(time)][:limit]
                further_lines = [
                    json_line({"task": None, task_filter.name: value, filtered.field: time.isoformat()})
                    if as_lines
                    else f"{filtered.text} {time:%Y-%m-%d %H:%M:%S} (UTC)"
                    for time in times
                ]
        tasks = list(islice(matching, limit + 1))
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
    print_list(tasks[:limit], as_lines, task_fields, summary_lines, "no task matches")
    if len(tasks) > limit and not as_lines:
        click.echo("… more tasks exist: raise --limit")
    for line in further_lines:
        click.echo(line)
