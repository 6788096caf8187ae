"""``celery -A … a2a list --all``: lists the tasks of all callers, from the store."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ...features import TASK_FILTERS
from ...features.feature import TaskFilter
from ...store.admin.scan import state_indexes, tasks_in
from ..output import json_line, time_text
from .selection import SUMMARIES, Selection, StoreMode, operator_store, select, selecting, with_store_modes
from .stuck_tasks import OLDER_THAN, list_stuck

STORE_FILTERS = ("owner", "since", "until", "begun")
"""Filters that gateways do not support."""


def list_tasks(
    task_filter: TaskFilter | None,
    context: click.Context,
    value: str = "",
    /,
    *,
    limit: int,
    as_lines: bool,
    **filters: Any,
) -> None:
    """List the tasks that match `filters` and, unless it is None, a feature's filter with its value."""
    selection = Selection(**filters)
    further_lines: list[str] = []
    with operator_store(context, None) as (a2a, store, keys):
        if task_filter is None:
            names = store.names(keys.indexes(selection.scope, selection.context_id))
        else:
            filtered = task_filter.select(keys, value)
            names = state_indexes(filtered.index_prefix)
            times = [] if filtered.further_times is None else store.run(filtered.further_times)
            further_lines = [
                json_line({"task": None, task_filter.name: value, filtered.field: time.isoformat()})
                if as_lines
                else f"{filtered.text} {time_text(time)} (UTC)"
                for time in list(filter(selection.has_time, times))[:limit]
            ]
        tasks = tasks_in(store, keys, names, selection.states, **selection.bounds)
        selected = select(a2a, selection, tasks, limit=limit + 1)
    SUMMARIES.print(selected, as_lines, "no task matches", limit=limit)
    for line in further_lines:
        click.echo(line)


STORE_MODES: dict[str, StoreMode] = {
    "all_callers": partial(list_tasks, None),
    "stuck": list_stuck,
    **{each.name.replace("-", "_"): partial(list_tasks, each) for each in TASK_FILTERS},
}
"""Functions that list tasks of the store, by the parameter of ``list`` that selects them."""

STORE_OPTIONS = ("--all", "--stuck", *(f"--{task_filter.name}" for task_filter in TASK_FILTERS))
"""Options with which ``list`` reads the store."""

with_list_options = with_store_modes(
    STORE_MODES,
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
    used_by={"older_than": ["stuck"], **dict.fromkeys(STORE_FILTERS, STORE_MODES)},
    general="all_callers",
)
"""Decorator that adds the options --all and --stuck and the filters of features to ``list``."""
