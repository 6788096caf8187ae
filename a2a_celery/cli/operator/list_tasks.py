"""``celery -A … a2a list --all``: lists the tasks of all callers, from the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ...features import TASK_FILTERS
from ...features.feature import TaskFilter
from ...store.admin.scan import all_tasks, state_indexes, tasks_in
from ..output import json_line, time_text
from .selection import (
    SUMMARIES,
    Selection,
    operator_store,
    refuse_filters,
    refuse_gateway_options,
    select,
    selecting,
    with_store_mode,
)
from .stuck_tasks import OLDER_THAN, list_stuck

STORE_FILTERS = ("owner", "since", "until", "begun")
"""Filters that gateways do not support."""

STORE_MODES = ("--all", "--stuck", *(f"--{task_filter.name}" for task_filter in TASK_FILTERS))
"""Options with which ``list`` reads the store."""


def _choose(context: click.Context, values: dict[str, Any]) -> Callable[[], None] | None:
    """Return the function that lists tasks of the store, or None to list tasks of a gateway."""
    all_callers, stuck, older_than = (values.pop(name) for name in ("all_callers", "stuck", "older_than"))
    filters = [(task_filter, values.pop(task_filter.name.replace("-", "_"))) for task_filter in TASK_FILTERS]
    filters = [(task_filter, value) for task_filter, value in filters if value is not None]
    names = [f"--{task_filter.name}" for task_filter, _ in filters]
    if older_than is not None and not stuck:
        raise click.UsageError("--older-than needs --stuck")
    if not (all_callers or stuck or filters):
        refuse_filters("--all or --stuck", values, STORE_FILTERS)
        return None
    refuse_gateway_options(context, "--stuck" if stuck else next(iter(names), "--all"), has_filters=True)
    if len(names) > 1:
        raise click.UsageError(f"pass only one of {', '.join(names)}")
    if stuck and names:
        raise click.UsageError(f"--stuck cannot be combined with {names[0]}")
    if stuck and values["state"] is not None:
        raise click.UsageError("--stuck selects the states itself: leave out --state")
    show = partial(list_stuck, older_than=older_than) if stuck else partial(_list, chosen=next(iter(filters), None))
    return partial(show, context, Selection.from_options(values), values["limit"], values["as_lines"])


with_list_options = with_store_mode(
    _choose,
    click.option(
        "--stuck",
        is_flag=True,
        help="List tasks of all callers that wait or hang, and why. Reads A2A_STORE_URL; needs no gateway.",
    ),
    click.option(
        "--older-than",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help=f"With --stuck: the shortest wait to report. Default: {OLDER_THAN:g}.",
    ),
    click.option(
        "--all",
        "all_callers",
        is_flag=True,
        help="List the tasks of all callers, for operators. Reads A2A_STORE_URL; needs no gateway.",
    ),
    *(click.option(f"--{task_filter.name}", help=task_filter.help) for task_filter in reversed(TASK_FILTERS)),
    selecting("tenant", *STORE_FILTERS),
)
"""Decorator that adds the options --all and --stuck and the filters of features to ``list``."""


def _list(
    context: click.Context,
    selection: Selection,
    limit: int,
    as_lines: bool,
    *,
    chosen: tuple[TaskFilter, str] | None,
) -> None:
    """List the tasks that match `selection` and, unless it is None, a feature's filter with its value."""
    further_lines: list[str] = []
    with operator_store(context, None) as (a2a, store, keys):
        if chosen is None:
            pattern = keys.indexes(selection.scope, selection.context_id)
            tasks = all_tasks(store, keys, pattern, selection.states, **selection.bounds)
        else:
            task_filter, value = chosen
            filtered = task_filter.select(keys, value)
            indexes = state_indexes(filtered.index_prefix)
            tasks = tasks_in(store, keys, indexes, selection.states, **selection.bounds)
            times = [] if filtered.further_times is None else store.run(filtered.further_times)
            further_lines = [
                json_line({"task": None, task_filter.name: value, filtered.field: time.isoformat()})
                if as_lines
                else f"{filtered.text} {time_text(time)} (UTC)"
                for time in list(filter(selection.has_time, times))[:limit]
            ]
        selected = select(a2a, selection, tasks, limit=limit + 1)
    SUMMARIES.print(selected[:limit], as_lines, "no task matches")
    if len(selected) > limit and not as_lines:
        click.echo("… more tasks exist: raise --limit")
    for line in further_lines:
        click.echo(line)
