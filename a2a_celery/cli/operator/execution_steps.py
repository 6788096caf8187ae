"""``celery -A … a2a get TASK --execution``: execution steps of a task's runs, from the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

from ...client import state_name
from ...lifecycle.execution import ENDS
from ...store.runs.release import read_steps
from ...store.runs.step_durations import StepDuration, step_durations
from ..output import json_line, printable, table
from .selection import duration, missing_task, operator_store, refuse_gateway_options

HEADING = ("RUN", "ATTEMPT", "STATE", "WHEN", "FOR", "WHAT", "WORKER")
UNKNOWN_DURATION = "lost"
"""Text that is shown as the duration of a step if the next step was not recorded."""


def _cells(duration_of: StepDuration) -> tuple[str, ...]:
    """Return the cells under `HEADING`."""
    step, transition = duration_of.step, duration_of.step.transition
    detail = ", ".join(f"{name} {value}" for name, value in transition.detail.items())
    at = transition.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return (f"{step.run}", f"{step.attempt}", transition.after, at, _how_long(duration_of), detail or "-", step.runner)


def _json_line(duration_of: StepDuration, task_id: str, agent: str) -> str:
    step, transition, seconds = duration_of.step, duration_of.step.transition, duration_of.seconds
    fields: dict[str, Any] = {
        "task": task_id,
        "agent": agent,
        "run": step.run,
        "attempt": step.attempt,
        "worker": step.runner,
        "number": transition.number,
        "from": transition.before,
        "state": transition.after,
        "at": transition.at.isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "open": duration_of.open,
        "detail": dict(transition.detail),
    }
    return json_line(fields)


def _how_long(duration_of: StepDuration) -> str:
    if duration_of.seconds is None:
        return "-" if duration_of.step.transition.after in ENDS else UNKNOWN_DURATION
    text = f"{duration_of.seconds:.3f} s" if duration_of.seconds < 60 else duration(duration_of.seconds)
    return f"{text} so far" if duration_of.open else text


def with_execution_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --execution to ``get``. With this option, the command reads the store instead of calling a
    gateway."""

    def run(context: click.Context, /, execution: bool, **rest: Any) -> Any:
        if not execution:
            return command(**rest)
        if rest["store"]:
            raise click.UsageError("--execution reads the store anyway: leave out --store")
        refuse_gateway_options(context, "--execution")
        return _show(context, rest["task"], rest["agent"], rest["as_lines"])

    return click.option(
        "--execution",
        is_flag=True,
        help="Show the steps of its runs: state, time, duration and worker. Reads A2A_STORE_URL; needs no gateway.",
    )(click.pass_context(update_wrapper(run, command)))


def _show(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    with operator_store(context, agent) as (a2a, store, keys):
        steps = store.run(read_steps(keys, task_id))
    if steps is None or agent not in (None, steps.agent):
        raise missing_task(a2a, task_id, agent)
    durations = list(step_durations(steps))
    if as_lines:
        for duration in durations:
            click.echo(_json_line(duration, task_id, steps.agent))
        return
    version = f", version {steps.version}" if steps.version else ""
    heading = f"task {task_id} ({steps.agent}{version}, context {steps.context_id}): {state_name(steps.state)}"
    click.echo(printable(heading))
    if not durations:
        click.echo("no step is recorded yet: no run has begun, or one has just begun")
        return
    for line in table(HEADING, [_cells(duration) for duration in durations], times=["WHEN"], below=["WHAT", "WORKER"]):
        click.echo(line)
