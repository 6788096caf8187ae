"""``celery -A … a2a get TASK --execution``: execution steps of a task's runs, from the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import click

from ...client import state_name
from ...lifecycle.execution import ENDS, process_of, worker_of
from ...store.runs.release import read_steps
from ...store.runs.step_durations import StepDuration, step_durations
from ..output import print_list, printable, table
from .selection import duration, missing_task, operator_store

HEADING = ("RUN", "ATTEMPT", "STATE", "WHEN", "FOR", "WHAT", "WORKER")
UNKNOWN_DURATION = "lost"
"""Text that is shown as the duration of a step if the next step was not recorded."""


def _cells(duration_of: StepDuration) -> tuple[str, ...]:
    """Return the cells under `HEADING`."""
    step, transition = duration_of.step, duration_of.step.transition
    detail = ", ".join(f"{name} {value}" for name, value in transition.detail.items())
    at = transition.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    worker = worker_of(step.runner)
    return (f"{step.run}", f"{step.attempt}", transition.after, at, _how_long(duration_of), detail or "-", worker)


def _fields(duration_of: StepDuration, task_id: str, agent: str) -> dict[str, Any]:
    step, transition, seconds = duration_of.step, duration_of.step.transition, duration_of.seconds
    return {
        "task": task_id,
        "agent": agent,
        "run": step.run,
        "attempt": step.attempt,
        "worker": worker_of(step.runner),
        "process": process_of(step.runner),
        "number": transition.number,
        "from": transition.before,
        "state": transition.after,
        "at": transition.at.isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "open": duration_of.open,
        "detail": dict(transition.detail),
    }


def _how_long(duration_of: StepDuration) -> str:
    if duration_of.seconds is None:
        return "-" if duration_of.step.transition.after in ENDS else UNKNOWN_DURATION
    text = f"{duration_of.seconds:.3f} s" if duration_of.seconds < 60 else duration(duration_of.seconds)
    return f"{text} so far" if duration_of.open else text


def show_execution(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print the steps of a task's runs."""
    with operator_store(context, agent) as (a2a, store, keys):
        steps = store.run(read_steps(keys, task_id))
    if steps is None or agent not in (None, steps.agent):
        raise missing_task(a2a, task_id, agent)
    if not as_lines:
        version = f", version {steps.version}" if steps.version else ""
        heading = f"task {task_id} ({steps.agent}{version}, context {steps.context_id}): {state_name(steps.state)}"
        click.echo(printable(heading))
    fields = partial(_fields, task_id=task_id, agent=steps.agent)
    empty = "no step is recorded yet: no run has begun, or one has just begun"
    print_list(list(step_durations(steps)), as_lines, fields, _lines, empty)


def _lines(durations: Sequence[StepDuration]) -> Iterable[str]:
    return table(HEADING, map(_cells, durations), times=["WHEN"])
